"""Listening: sockets, TLS, limits on connections, and an orderly end. Runs in the caller's event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path

from uvicorn.config import Config as UvicornConfig
from uvicorn.server import ServerState

from stoker.config import ConfigError, GatewayConfig
from stoker.gateway.app import Gateway
from stoker.gateway.application import Application
from stoker.gateway.hosts import is_loopback
from stoker.gateway.protocol import GuardedProtocol

log = logging.getLogger(__name__)

_CUT_SECONDS = 0.5  # for what is cut at the end of the grace to say goodbye


def check_exposure(host: str, *, guarded: bool) -> None:
    """Raise ConfigError if anybody on the network could use this server without a key."""
    if not guarded and not is_loopback(host):
        raise ConfigError(
            f"gateway.host is {host}, which others can reach, but no API keys are configured: "
            "add [[tenants]] with name and key_sha256, or listen on 127.0.0.1"
        )


async def serve(app: Gateway, config: GatewayConfig, *, started: Callable[[int], None], stop: asyncio.Event) -> None:
    """Serve until `stop` is set, then let running requests end within `shutdown_grace` and cut the rest.

    `started` gets the port once connections are accepted (the one chosen if the configured one is 0). Raises
    ConfigError for an unguarded public host or bad TLS files, OSError if the address cannot be bound.
    """
    check_exposure(config.host, guarded=app.guarded)
    settings, state, protocol = _prepare(app, config)
    server = await asyncio.get_running_loop().create_server(
        protocol,
        host=config.host,
        port=config.port,
        ssl=settings.ssl,
        ssl_handshake_timeout=config.header_timeout if settings.ssl else None,
        backlog=config.max_connections,
    )
    await _run(server, state, config, lambda: started(_port(server.sockets)), stop)


async def serve_unix(app: Application, config: GatewayConfig, path: Path, stop: asyncio.Event) -> None:
    """Serve on a Unix socket that only this user can connect to, until `stop` is set; then it is removed. What lies at
    `path` is replaced. Raises OSError."""
    _, state, protocol = _prepare(app, config)
    with _socket_at(path) as listener:
        server = await asyncio.get_running_loop().create_unix_server(protocol, sock=listener)
        await _run(server, state, config, lambda: None, stop)


@contextmanager
def _socket_at(path: Path) -> Generator[socket.socket]:
    """Bound and not yet listening, so that nobody can connect before the mode is right."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        try:
            path.chmod(0o600)
            yield listener
        finally:
            path.unlink(missing_ok=True)


def _prepare(
    app: Application, config: GatewayConfig
) -> tuple[UvicornConfig, ServerState, Callable[[], asyncio.Protocol]]:
    """Settings, what all connections share, and how one of them is made. Raises ConfigError for bad TLS files."""
    kind = type("Protocol", (GuardedProtocol,), {"gateway": config})
    settings = UvicornConfig(
        app,
        http=kind,
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_keep_alive=round(config.keep_alive),
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
    )
    try:
        settings.load()
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"cannot use the TLS files {config.tls_cert}, {config.tls_key}: {error}") from error
    state = ServerState()
    _set_date(state)
    return settings, state, lambda: kind(config=settings, server_state=state, app_state={})


async def _run(
    server: asyncio.Server, state: ServerState, config: GatewayConfig, started: Callable[[], None], stop: asyncio.Event
) -> None:
    clock = asyncio.create_task(_tick(state))
    try:
        started()
        await stop.wait()
    finally:
        clock.cancel()
        server.close()
        await _end(state, config.shutdown_grace)


def _port(sockets: tuple[socket.socket, ...]) -> int:
    return sockets[0].getsockname()[1]


def _set_date(state: ServerState) -> None:
    state.default_headers = [(b"date", formatdate(usegmt=True).encode())]


async def _tick(state: ServerState) -> None:
    while True:
        await asyncio.sleep(1.0)
        _set_date(state)


async def _end(state: ServerState, grace: float) -> None:
    """Idle connections close now, busy ones after their response; what is left after the grace is cut."""
    for connection in list(state.connections):
        connection.shutdown()
    if state.tasks:
        await asyncio.wait(set(state.tasks), timeout=grace)
    if state.tasks:
        log.info("Cutting %d requests", len(state.tasks), extra={"action": "server.cut"})
        for task in set(state.tasks):
            task.cancel()
        await asyncio.wait(set(state.tasks), timeout=_CUT_SECONDS)
    for connection in list(state.connections):
        connection.transport.abort()
