"""Stoker as `stoker serve` puts it together, but over bench.fake_engine.

`python -m bench.gateway_host PORT [options of bench.fake_engine]`
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from stoker.config import EngineConfig, GatewayConfig
from stoker.engine.spec import EngineSpec
from stoker.fleet.launcher import Host, LocalLauncher
from stoker.fleet.pool import Pool
from stoker.gateway.app import create_app
from stoker.gateway.server import serve
from stoker.models.info import read_info
from stoker.models.source import resolve
from stoker.models.text.model import TextModel
from stoker.service.catalog import Catalog
from stoker.service.pipeline import Service
from stoker.service.tenants import Tenants


async def host(port: int, options: Sequence[str]) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    files = resolve("demo", revision=None, data_dir=Path(), progress=lambda stage, fraction: None)
    info = read_info(files)

    spec = EngineSpec(files=files, info=info, config=EngineConfig(), endpoint="", chain_key=secrets.token_hex(32))
    pool = Pool("demo", LocalLauncher(Host(), spec, command=(sys.executable, "-m", "bench.fake_engine", *options)))
    await pool.start()
    try:
        service = Service(TextModel.load(files), info, pool, scheme=spec.scheme)
        catalog = Catalog()
        catalog.add(service)
        config = GatewayConfig(port=port)
        await serve(create_app(catalog, config, Tenants()), config, started=lambda port: None, stop=stop)
    finally:
        await pool.stop()


if __name__ == "__main__":
    uvloop.run(host(int(sys.argv[1]), sys.argv[2:]))
