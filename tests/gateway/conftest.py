from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import uvloop
from front_fakes import INFO, FakeBackend, FakeText

from stoker.config import GatewayConfig, Tenant
from stoker.gateway.app import create_app
from stoker.gateway.server import serve
from stoker.obs.metrics import Metrics
from stoker.service.catalog import Catalog
from stoker.service.pipeline import Service
from stoker.service.tenants import Tenants


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Callable[..., object]]:
    """What production runs on: its transports behave differently at the edges."""
    return {"uvloop": uvloop.new_event_loop}


class Server:
    """A whole gateway over a scripted engine, listening on a real port."""

    def __init__(self, port: int, backend: FakeBackend, text: FakeText, service: Service, catalog: Catalog) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.backend = backend
        self.text = text
        self.service = service
        self.catalog = catalog


Launch = Callable[..., Awaitable[Server]]


@asynccontextmanager
async def running(
    config: GatewayConfig, tenants: tuple[Tenant, ...], backend: FakeBackend, text: FakeText, stop: asyncio.Event
) -> AsyncGenerator[Server]:
    metrics = Metrics()
    service = Service(text, INFO, backend, metrics=metrics)
    catalog = Catalog()
    catalog.add(service)
    port: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve(create_app(catalog, config, Tenants(tenants), metrics), config, started=port.set_result, stop=stop)
    )
    await asyncio.wait((task, port), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        yield Server(port.result(), backend, text, service, catalog)
    finally:
        stop.set()
        await task
        service.close()
        assert not backend.open


@pytest.fixture
async def launch() -> AsyncGenerator[Launch]:
    """`await launch(backend, text=..., tenants=..., gateway options)` -> Server; all are stopped after the test."""
    servers = []

    async def start(
        backend: FakeBackend | None = None,
        *,
        text: FakeText | None = None,
        tenants: tuple[Tenant, ...] = (),
        stop: asyncio.Event | None = None,
        **options: object,
    ) -> Server:
        config = GatewayConfig(port=0, **({"shutdown_grace": 0.1} | options))
        context = running(config, tenants, backend or FakeBackend(), text or FakeText(), stop or asyncio.Event())
        server = await context.__aenter__()
        servers.append(context)
        return server

    yield start
    for context in servers:
        await context.__aexit__(None, None, None)


@pytest.fixture
async def server(launch: Launch) -> Server:
    return await launch()
