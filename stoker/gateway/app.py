"""The ASGI application: which route a request belongs to, who sent it, and what becomes of errors.

One structured log line a request, never content, and one count.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from stoker.config import GatewayConfig, Tenant
from stoker.dialects import anthropic_errors, openai_errors
from stoker.dialects.anthropic_encode import MessagesStream, MessagesWhole
from stoker.dialects.anthropic_messages import decode_messages
from stoker.dialects.encoder import ErrorShape
from stoker.dialects.openai_chat import decode_chat
from stoker.dialects.openai_chat_encode import ChatStream, ChatWhole
from stoker.dialects.openai_completions import CompletionStream, CompletionWhole, decode_completion
from stoker.fleet.collector import FleetCollector
from stoker.gateway.asgi import Receive, Scope, Send
from stoker.gateway.generate import Door, GenerateRoute
from stoker.gateway.health import HealthRoutes
from stoker.gateway.http import FAREWELL_SECONDS, STOPPING, ClientGoneError, Exchange
from stoker.gateway.info import InfoRoutes, not_found
from stoker.gateway.keys import Keys
from stoker.gateway.metrics import MetricsRoute
from stoker.gateway.openapi import document
from stoker.gateway.responses import ResponsesRoute
from stoker.obs.metrics import Metrics
from stoker.obs.traces import Traces, traceparent
from stoker.service.catalog import Catalog
from stoker.service.tenants import LOCAL, Tenants
from stoker.types.errors import ErrorKind, StokerError

log = logging.getLogger(__name__)

Handler = Callable[[Exchange, Tenant], Awaitable[None]]

_PASSING = (429, 503, 529)  # worth another try, so they always say when
_PROBES = ("/health/live", "/health/ready", "/metrics")  # asked every few seconds
_FAULTS = ("failed", "broken", "cut")  # outcomes that are errors of this server
CLIENT_GONE = 499  # nginx's number for it; only in logs, nobody is left to read it


class Gateway:
    """Callable as an ASGI application. `routes` maps a path to its handler per method; a path ending in `/` stands
    for everything below it."""

    def __init__(
        self, catalog: Catalog, config: GatewayConfig, tenants: Tenants, metrics: Metrics, traces: Traces
    ) -> None:
        self._keys = Keys(tenants)
        self._metrics = metrics
        self._traces = traces
        door = Door(config)
        info = InfoRoutes(catalog, door)
        health = HealthRoutes(catalog, config)
        route = partial(GenerateRoute, catalog, config, door)
        chat = route(prefix="chatcmpl-", decode=decode_chat, stream=ChatStream, whole=ChatWhole)
        completions = route(prefix="cmpl-", decode=decode_completion, stream=CompletionStream, whole=CompletionWhole)
        messages = route(prefix="msg_", decode=decode_messages, stream=MessagesStream, whole=MessagesWhole)
        responses = ResponsesRoute(catalog, config, door, tenants)
        self._document = msgspec.json.encode(document())
        self.routes: dict[str, dict[str, Handler]] = {
            "/": {"GET": info.banner, "HEAD": info.banner},
            "/openapi.json": {"GET": self._openapi},
            "/health/live": {"GET": health.live},
            "/health/ready": {"GET": health.ready},
            "/metrics": {"GET": MetricsRoute(metrics, config)},
            "/v1/models": {"GET": info.models},
            "/v1/models/": {"GET": info.model},
            "/v1/chat/completions": {"POST": chat},
            "/v1/completions": {"POST": completions},
            "/v1/responses": {"POST": responses},
            "/v1/messages": {"POST": messages},
            "/v1/messages/count_tokens": {"POST": info.count_tokens},
            "/v1/tokenize": {"POST": info.tokenize},
            "/v1/detokenize": {"POST": info.detokenize},
        }

    @property
    def guarded(self) -> bool:
        """Whether a key is required, so that others than this host may be let in."""
        return self._keys.required

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
        exchange.route = self._find(exchange.path)
        methods, public = self.routes[exchange.route], not exchange.route.startswith("/v1/")
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
        tenant = LOCAL if public else self._keys.identify(exchange)
        if not public:
            exchange.notes["tenant"] = tenant.name
        await handler(exchange, tenant)

    def _find(self, path: str) -> str:
        """The route that `path` belongs to. Raises StokerError (NOT_FOUND)."""
        if path in self.routes:
            return path
        if path.startswith("/v1/models/"):
            return "/v1/models/"
        raise not_found(path)

    async def _openapi(self, exchange: Exchange, tenant: Tenant) -> None:
        await exchange.reply(200, self._document)

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


def create_app(
    catalog: Catalog,
    gateway: GatewayConfig,
    tenants: Tenants,
    metrics: Metrics | None = None,
    traces: Traces | None = None,
) -> Gateway:
    """The application over the models of `catalog`. With `tenants`, /v1 needs one of their keys. Both may change.
    `metrics` are what /metrics shows, with the engines' own figures; `traces` are where spans go."""
    shown = metrics or Metrics()
    shown.registry.register(FleetCollector(lambda: ((service.name, service.backend) for service in catalog)))
    return Gateway(catalog, gateway, tenants, shown, traces or Traces())
