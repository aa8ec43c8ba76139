"""What operators ask of a running server: /admin/..., on a Unix socket of its own or with the key of an admin.

Owns the routes and how progress is told: a line of JSON for each word of it, and a last one with the outcome. What is
done is behind `Operator`. An operation that has begun goes on when whoever asked for it leaves.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Protocol

import msgspec

from stoker.config import GatewayConfig, Tenant
from stoker.fleet.backend import ReplicaStatus
from stoker.gateway.application import Application, Routes
from stoker.gateway.http import Exchange, check_json_headers, overloaded
from stoker.obs.metrics import Metrics
from stoker.obs.traces import Traces
from stoker.service.tenants import LOCAL
from stoker.types.errors import ErrorKind, StokerError, invalid

OPERATIONS = 16  # that are under way or wait for one another
MAX_BODY = 64 * 1024
BODY_SECONDS = 10.0

Say = Callable[[str], None]

log = logging.getLogger(__name__)


class ModelStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `replayed` requests went on after a loss, for the price of `repeated_tokens`; `moved` sessions had to
    leave a replica that took no requests any more, and `moved_tokens` of their prompts were computed anew."""

    model: str
    status: str
    aliases: list[str]
    replicas: Mapping[str, ReplicaStatus]
    replayed: int
    repeated_tokens: int
    moved: int
    moved_tokens: int


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """All that `stoker status` shows."""

    version: str
    seconds: float
    models: Mapping[str, ModelStatus]


class Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line of an answer: a word of progress, or how it ended. `code` and `error` are set if it failed."""

    say: str | None = None
    done: bool = False
    code: str | None = None
    error: str | None = None


class Operator(Protocol):
    """Changes what is served while it is served. Every method but `status` may take as long as models take to load,
    tells what it does in words, and raises StokerError."""

    def status(self) -> ServerStatus: ...

    async def drain(self, name: str, say: Say) -> None:
        """Of a replica."""
        ...

    async def undo(self, name: str, say: Say) -> None:
        """Of a drain."""
        ...

    async def restart(self, name: str | None, say: Say) -> None:
        """Of one replica, all of a model, or all there are; one after the other."""
        ...

    async def reload(self, say: Say) -> None:
        """Of the configuration."""
        ...


class _Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str | None = None
    undo: bool = False


class AdminRoutes:
    """`routes` as an application has them. `await close()` ends what is still under way."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._tasks: set[asyncio.Task[None]] = set()
        self.routes: Routes = {
            "/admin/status": {"GET": self._status},
            "/admin/drain": {"POST": self._drain},
            "/admin/restart": {"POST": self._restart},
            "/admin/reload": {"POST": self._reload},
        }

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _status(self, exchange: Exchange, tenant: Tenant) -> None:
        await exchange.reply(200, msgspec.json.encode(self._operator.status()))

    async def _drain(self, exchange: Exchange, tenant: Tenant) -> None:
        ask = await _read(exchange)
        name = ask.name
        if name is None:
            raise invalid("missing_required_parameter", "'name' of a replica is needed.", param="name")
        work = self._operator.undo if ask.undo else self._operator.drain
        await self._run(exchange, lambda say: work(name, say))

    async def _restart(self, exchange: Exchange, tenant: Tenant) -> None:
        ask = await _read(exchange)
        await self._run(exchange, lambda say: self._operator.restart(ask.name, say))

    async def _reload(self, exchange: Exchange, tenant: Tenant) -> None:
        await _read(exchange)
        await self._run(exchange, self._operator.reload)

    async def _run(self, exchange: Exchange, work: Callable[[Say], Coroutine[Any, Any, None]]) -> None:
        """Do it in a task of its own, and tell the client as long as it is there."""
        if len(self._tasks) >= OPERATIONS:
            raise overloaded("Too many operations at once.")
        lines: asyncio.Queue[Outcome] = asyncio.Queue()

        def say(text: str) -> None:
            log.info("%s", text, extra={"action": "operator"})
            lines.put_nowait(Outcome(say=text))

        async def operate() -> None:
            try:
                await work(say)
                lines.put_nowait(Outcome(done=True))
            except StokerError as error:
                log.warning("%s", error.message, extra={"action": "operator_failed", "code": error.code})
                lines.put_nowait(Outcome(code=error.code, error=error.message))
            except Exception:
                log.exception("An operation failed by our own fault", extra={"action": "operator_failed"})
                lines.put_nowait(Outcome(code="internal_error", error="An error on our side; the log has it."))

        async def tell() -> None:
            await exchange.begin(200, [(b"content-type", b"application/x-ndjson")])
            while True:
                line = await lines.get()
                last = line.say is None
                await exchange.write(msgspec.json.encode(line) + b"\n", more=not last)
                if last:
                    return

        task = asyncio.create_task(operate())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await exchange.attend(tell())


class AdminApp(Application):
    """The same routes where whoever can connect may use them: on a socket that only this user can open."""

    def __init__(self, admin: AdminRoutes) -> None:
        super().__init__(Metrics(), Traces())
        self.routes = admin.routes

    def identify(self, exchange: Exchange) -> Tenant:
        return LOCAL


def check_admin(tenant: Tenant) -> None:
    """Raise PERMISSION unless the key is an admin's."""
    if not tenant.admin:
        raise StokerError(ErrorKind.PERMISSION, "admin_key_needed", "This key may not operate the server.")


async def _read(exchange: Exchange) -> _Ask:
    check_json_headers(exchange)
    body = await exchange.body(MAX_BODY, BODY_SECONDS, lambda size: None)
    try:
        return msgspec.json.decode(body or b"{}", type=_Ask)
    except msgspec.MsgspecError as error:
        raise invalid("invalid_json", f"The body is not as it must be: {error}.") from None


ADMIN_CONFIG = GatewayConfig(max_connections=64)
"""Bounds of the Unix socket."""
