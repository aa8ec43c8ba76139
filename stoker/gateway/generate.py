"""The routes that generate: body -> request -> service -> stream or whole response, in a dialect's shapes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from stoker.config import GatewayConfig, Tenant
from stoker.dialects.encoder import Head, StreamEncoder, WholeEncoder
from stoker.gateway.http import SMALL_BODY, BodyBudget, Exchange, check_json_headers, overloaded, parse_object
from stoker.gateway.sse import EventStream
from stoker.service.catalog import Catalog
from stoker.service.divergence import Divergence
from stoker.service.pipeline import Generation, Service
from stoker.types.chat import ChatRequest, CompletionRequest, Done, Event

T = TypeVar("T")
R = TypeVar("R", bound=ChatRequest | CompletionRequest)

_SESSION_HEADERS = (b"x-session-affinity", b"x-session-id", b"session-id", b"x-claude-code-session-id")
_MAX_SESSION = 256
PREFIX_HEADER = b"x-stoker-prefix"
BODIES_AT_ONCE = 8  # of the largest size; many more of the usual sizes


def session_of(exchange: Exchange) -> str | None:
    """The client's session id from its headers, the most specific first."""
    for name in _SESSION_HEADERS:
        value = exchange.header(name)
        if value:
            return value[:_MAX_SESSION]
    return None


class Door:
    """Lets at most so many requests and bytes in at a time, and turns bodies into values off the event loop."""

    def __init__(self, config: GatewayConfig) -> None:
        self._config = config
        self._budget = BodyBudget(BODIES_AT_ONCE * config.max_body)
        self._free = config.max_in_flight

    async def __aenter__(self) -> None:
        if self._free == 0:
            raise overloaded("Too many requests at once.")
        self._free -= 1

    async def __aexit__(self, *_: object) -> None:
        self._free += 1

    async def read(self, exchange: Exchange, decode: Callable[[dict[str, Any]], T]) -> T:
        """The body through `decode`. Raises StokerError and ClientGoneError."""
        check_json_headers(exchange)
        with self._budget.share() as take:
            body = await exchange.body(self._config.max_body, self._config.body_timeout, take)
            if len(body) <= SMALL_BODY:
                return decode(parse_object(body))
            return await asyncio.to_thread(lambda: decode(parse_object(body)))


class GenerateRoute(Generic[R]):
    """One dialect's way of asking for output. `prefix` starts the ids of its responses."""

    def __init__(
        self,
        catalog: Catalog,
        config: GatewayConfig,
        door: Door,
        *,
        prefix: str,
        decode: Callable[..., R],
        stream: Callable[[R, Head], StreamEncoder],
        whole: Callable[[R, Head], WholeEncoder],
    ) -> None:
        self._catalog = catalog
        self._config = config
        self._door = door
        self._prefix = prefix
        self._decode = decode
        self._stream = stream
        self._whole = whole

    async def __call__(self, exchange: Exchange, tenant: Tenant) -> None:
        async with self._door:
            session = session_of(exchange)
            decoded = await self._door.read(exchange, lambda body: self._decode(body, session=session))
            request = self.complete(decoded, tenant)
            service = self._catalog.find(request.model)
            head = Head(
                id=f"{self._prefix}{secrets.token_hex(12)}",
                created=int(time.time()),
                model=service.name,
                fingerprint=f"fp_{service.info.fingerprint[:16]}",
            )
            exchange.notes |= {"id": head.id, "session": request.session, "lane": request.lane.name.lower()}
            run = _Run(
                service=service,
                exchange=exchange,
                request=request,
                tenant=tenant,
                head=head,
                heartbeat=self._config.heartbeat,
            )
            try:
                if request.stream:
                    stream = self._stream(request, head)
                    await run.stream(stream, lambda: self.keep(stream, request, tenant))
                else:
                    whole = self._whole(request, head)
                    await run.whole(whole, lambda: self.keep(whole, request, tenant))
            finally:
                run.note_usage()

    def complete(self, request: R, tenant: Tenant) -> R:
        """The request with what only this server knows of it. Raises StokerError."""
        return request

    def keep(self, encoder: StreamEncoder | WholeEncoder, request: R, tenant: Tenant) -> None:
        """Called when all of an answer is known, before the client hears that it ended."""


@dataclass(kw_only=True)
class _Run:
    """One request on its way. The client is watched from the first moment, also while its prompt is rendered."""

    service: Service
    exchange: Exchange
    request: ChatRequest | CompletionRequest
    tenant: Tenant
    head: Head
    heartbeat: float
    generation: Generation | None = field(default=None, init=False)

    async def stream(self, encoder: StreamEncoder, done: Callable[[], None]) -> None:
        out = EventStream(self.exchange, encoder, heartbeat=self.heartbeat)
        await out.run(self._events(done))

    async def whole(self, encoder: WholeEncoder, done: Callable[[], None]) -> None:
        async def collect() -> None:
            async with aclosing(self._events(done)) as events:
                async for event in events:
                    encoder.push(event)

        await self.exchange.attend(collect())
        await self.exchange.reply(200, encoder.finish())

    async def _events(self, done: Callable[[], None]) -> AsyncGenerator[Event]:
        self.generation = await self.service.start(
            self.request,
            tenant=self.tenant.name,
            request_id=self.head.id,
            zone=self.tenant.zone,
            remember=self.tenant.retain,
            traceparent=self.exchange.trace.traceparent,
        )
        self._note_divergence(self.generation.divergence)
        async with aclosing(self.generation.events()) as events:
            async for event in events:
                if isinstance(event, Done):
                    done()
                yield event

    def _note_divergence(self, divergence: Divergence | None) -> None:
        """Tell the client how much of its session's last prompt this one has kept, and what it must read again."""
        if divergence is not None:
            told = f"shared={divergence.shared}, of={divergence.of}, lost={divergence.lost}"
            self.exchange.extra.append((PREFIX_HEADER, told.encode()))
            self.exchange.notes["prefix_lost"] = divergence.lost

    def note_usage(self) -> None:
        if self.generation is not None:
            usage = self.generation.usage
            self.exchange.notes |= {
                "tokens_in": usage.input,
                "tokens_cached": usage.input_cached,
                "tokens_out": usage.output,
                "steps_waited": self.generation.waited,
            }
