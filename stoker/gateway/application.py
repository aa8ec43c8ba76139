"""What every application here does with a request: finds its route, says who sent it, and makes errors into answers.

One structured log line a request, never content, and one count.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from stoker.config import Tenant
from stoker.dialects import anthropic_errors, openai_errors
from stoker.dialects.encoder import ErrorShape
from stoker.gateway.asgi import Receive, Scope, Send
from stoker.gateway.http import FAREWELL_SECONDS, STOPPING, ClientGoneError, Exchange
from stoker.gateway.info import not_found
from stoker.obs.metrics import Metrics
from stoker.obs.traces import Traces, traceparent
from stoker.service.tenants import LOCAL
from stoker.types.errors import ErrorKind, StokerError

log = logging.getLogger(__name__)

Handler = Callable[[Exchange, Tenant], Awaitable[None]]
Routes = dict[str, dict[str, Handler]]

_PASSING = (429, 503, 529)  # worth another try, so they always say when
_PROBES = ("/health/live", "/health/ready", "/metrics")  # asked every few seconds
_FAULTS = ("failed", "broken", "cut")  # outcomes that are errors of this server
_GUARDED = ("/v1/", "/admin/")  # what only those may use that `identify` knows
CLIENT_GONE = 499  # nginx's number for it; only in logs, nobody is left to read it


class Application:
    """Callable as an ASGI application. `routes` maps a path to its handler per method."""

    routes: Routes

    def __init__(self, metrics: Metrics, traces: Traces) -> None:
        self._metrics = metrics
        self._traces = traces

    def identify(self, exchange: Exchange) -> Tenant:
        """Who sent it, for routes that are not open to all. Raises StokerError (AUTH, PERMISSION)."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']}")
        exchange = Exchange(scope, receive, send)
        self._metrics.in_flight.inc()
        try:
            await self._dispatch(exchange)
        except StokerError as error:
            await self._fail(exchange, error)
        except ClientGoneError:
            exchange.notes["outcome"] = "disconnected"
            exchange.status = exchange.status or CLIENT_GONE
        except asyncio.CancelledError:  # the server stops and this took too long; the task ends here anyway
            exchange.notes["outcome"] = "cut"
            await self._apologise(exchange)
        except Exception:
            log.exception("A request failed by our own fault", extra={"action": "http.fault", "request": exchange.id})
            await self._fail(exchange, StokerError(ErrorKind.INTERNAL, "internal_error", "An error on our side."))
        finally:
            self._metrics.in_flight.dec()
            self._end_trace(exchange)
            self._metrics.request(
                route=exchange.route,
                status=exchange.status,
                lane=exchange.notes.get("lane", ""),
                outcome=exchange.outcome,
            )
            self._log(exchange)

    async def _dispatch(self, exchange: Exchange) -> None:
        exchange.route = self.find(exchange.path)
        methods, public = self.routes[exchange.route], not exchange.route.startswith(_GUARDED)
        if not public:
            exchange.trace = self._traces.span(
                f"{exchange.method} {exchange.route}",
                traceparent(exchange.header(b"traceparent")),
                {"http.request.method": exchange.method, "http.route": exchange.route},
                server=True,
            )
        handler = methods.get(exchange.method)
        if handler is None:
            allowed = ", ".join(methods).encode()
            error = StokerError(ErrorKind.INVALID, "method_not_allowed", f"{exchange.path} takes {allowed.decode()}.")
            exchange.notes["error"] = error.code
            await exchange.reply(405, _errors(exchange).encode_error(error), headers=((b"allow", allowed),))
            return
        tenant = LOCAL if public else self.identify(exchange)
        if not public:
            exchange.notes["tenant"] = tenant.name
        await handler(exchange, tenant)

    def find(self, path: str) -> str:
        """The route that `path` belongs to. Raises StokerError (NOT_FOUND)."""
        if path in self.routes:
            return path
        raise not_found(path)

    async def _fail(self, exchange: Exchange, error: StokerError) -> None:
        exchange.notes["error"] = error.code
        if exchange.status:
            return  # too late for a status; a stream has said so itself, and the server closes the connection
        errors = _errors(exchange)
        status = errors.status_of(error)
        headers: list[tuple[bytes, bytes]] = []
        if error.retry_after is not None or status in _PASSING:
            headers.append((b"retry-after", str(max(1, round(error.retry_after or 1))).encode()))
        if error.kind is ErrorKind.AUTH:
            headers.append((b"www-authenticate", b"Bearer"))
        await exchange.reply(status, errors.encode_error(error), headers=tuple(headers))

    async def _apologise(self, exchange: Exchange) -> None:
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._fail(exchange, STOPPING)
        except TimeoutError:
            pass  # it does not read; its connection is closed

    def _end_trace(self, exchange: Exchange) -> None:
        outcome = exchange.outcome
        exchange.trace.note(
            {
                "http.response.status_code": exchange.status,
                "stoker.outcome": outcome,
                "stoker.request": exchange.notes.get("id", ""),
            }
        )
        exchange.trace.end(outcome if outcome in _FAULTS else "")

    def _log(self, exchange: Exchange) -> None:
        elapsed = round((time.perf_counter() - exchange.began) * 1000, 1)
        log.log(
            logging.DEBUG if exchange.route in _PROBES else logging.INFO,
            "%s %s %d",
            exchange.method,
            exchange.path[:200],
            exchange.status,
            extra={
                "action": "http.request",
                "method": exchange.method,
                "path": exchange.path[:200],
                "status": exchange.status,
                "ms": elapsed,
                "request": exchange.id,
                **exchange.notes,
            },
        )


def _errors(exchange: Exchange) -> ErrorShape:
    """Whose shape an error of this route has."""
    return anthropic_errors if exchange.path.startswith("/v1/messages") else openai_errors
