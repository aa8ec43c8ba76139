"""The composition root: models, catalog and gateway put together, kept running, taken down in order."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvloop

from stoker.cli.admin_socket import serve_admin
from stoker.cli.deployment import Deployment, Found, find
from stoker.cli.operator import ServerOperator
from stoker.cli.output import fail
from stoker.cli.screen import Screen
from stoker.config import Config, ConfigError, TracesConfig
from stoker.fleet import ray_launcher
from stoker.fleet.backend import Down, State
from stoker.fleet.launcher import Host
from stoker.gateway.admin import AdminRoutes
from stoker.gateway.app import create_app
from stoker.gateway.server import serve as serve_http
from stoker.models.source import ModelError
from stoker.obs.log import setup
from stoker.obs.metrics import Metrics
from stoker.obs.traces import Traces, connect
from stoker.service.catalog import Catalog
from stoker.service.images import ImageStore
from stoker.service.tenants import Tenants
from stoker.types.wire import Ready


def run(config: Config, reread: Callable[[], Config]) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status. `reread` gives the configuration as it is when it is
    asked for again. Blocks."""
    setup(config.log_format, config.log_level)
    screen = Screen(config)
    try:
        tenants = Tenants(config.tenants)
        config.data_path.mkdir(parents=True, exist_ok=True)
        found = [find(config, model, screen.progress) for model in config.models]
        traces = _traces(config.traces)
    except (ConfigError, ModelError, OSError) as error:
        screen.close()
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        screen.close()
        return 130
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            return runner.run(_serve(config, reread, found, tenants, screen, traces))
        finally:
            traces.close()


async def _serve(
    config: Config,
    reread: Callable[[], Config],
    found: list[Found],
    tenants: Tenants,
    screen: Screen,
    traces: Traces,
) -> int:
    stop = asyncio.Event()
    failure: list[str] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)

    served: set[str] = set()  # models that were ready once: what ends them later is somebody's wish

    def on_state(model: str, state: State) -> None:
        screen.state(model, state)
        if isinstance(state, Ready):
            served.add(model)
        if isinstance(state, Down) and state.final and not stop.is_set() and model not in served:
            failure.append(state.reason if len(found) == 1 else f"{model}: {state.reason}")
            stop.set()

    key, catalog, metrics = chain_key(config.data_path), Catalog(), Metrics()
    host = Host(sum(model.config.replicas for model in found), loading=config.fleet.loading)
    images = ImageStore(config.images)

    def make(config: Config, model: Found, on_state: Callable[[State], None]) -> Deployment:
        return Deployment(config, model, host, key, metrics, traces, images, on_state)

    operator = ServerOperator(config, catalog, tenants, host, make=make, reread=reread)
    admin = AdminRoutes(operator)
    socket = asyncio.create_task(serve_admin(config.data_path, admin, stop))
    try:
        if config.fleet.launcher == "ray":
            await asyncio.to_thread(ray_launcher.connect, config.fleet.ray_address)
        await operator.open(found, on_state)
        app = create_app(catalog, config.gateway, tenants, metrics, traces, admin)
        await serve_http(app, config.gateway, started=screen.listening, stop=stop)
    except (OSError, ConfigError, ModelError) as error:
        failure.append(str(error))
    finally:
        screen.close()
        stop.set()
        await admin.close()
        await asyncio.gather(operator.close(), socket, images.close())
        if config.fleet.launcher == "ray":
            await asyncio.to_thread(ray_launcher.disconnect)
    if failure:
        fail(failure[0])
        return 1
    return 0


def _traces(config: TracesConfig) -> Traces:
    """Raises ConfigError where they are asked for and the packages are not there."""
    if config.endpoint is None:
        return Traces()
    try:
        return connect(config.endpoint, config.sample)
    except ImportError as error:
        raise ConfigError(f"traces.endpoint needs the extra 'otel': pip install 'stoker[otel]' ({error})") from error


def chain_key(folder: Path) -> bytes:
    """The key of the hash chain: made once per data folder, so the chain is stable over restarts."""
    path = folder / "chain.key"
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=folder, prefix="chain.key.") as file:  # 0600 from the start
            file.write(secrets.token_bytes(32))
            file.flush()
            with suppress(FileExistsError):  # another server of this folder was quicker: its key counts
                os.link(file.name, path)
    return path.read_bytes()
