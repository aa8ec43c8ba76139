"""The routes that tell: models, tokens, health, and what this server is."""

from __future__ import annotations

import time

import msgspec

from stoker import __version__
from stoker.config import GatewayConfig
from stoker.dialects.anthropic_encode import encode_count
from stoker.dialects.anthropic_messages import decode_count
from stoker.dialects.tokens import decode_detokenize, decode_tokenize, encode_prompt, encode_tokens
from stoker.fleet.backend import Down, Starting
from stoker.gateway.generate import Door
from stoker.gateway.http import Exchange
from stoker.service.pipeline import Service
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.wire import EngineStats, Ready

_BANNER = (
    f"Stoker {__version__}. OpenAI-compatible and Anthropic's API under /v1, described at /openapi.json.\n".encode()
)


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "stoker"
    context_length: int
    max_model_len: int


class _Models(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[_Model]


class _Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    stage: str | None = None
    fraction: float | None = None
    reason: str | None = None
    heartbeat_age: float | None = None
    engine: EngineStats | None = None


class InfoRoutes:
    """Everything but generation."""

    def __init__(self, service: Service, config: GatewayConfig, door: Door) -> None:
        self._service = service
        self._config = config
        self._door = door
        self._created = int(time.time())

    async def banner(self, exchange: Exchange, tenant: str) -> None:
        await exchange.reply(200, _BANNER, content_type=b"text/plain; charset=utf-8")

    async def models(self, exchange: Exchange, tenant: str) -> None:
        await exchange.reply(200, msgspec.json.encode(_Models(data=[self._model()])))

    async def model(self, exchange: Exchange, tenant: str) -> None:
        self._service.check_model(exchange.path.removeprefix("/v1/models/"))
        await exchange.reply(200, msgspec.json.encode(self._model()))

    def _model(self) -> _Model:
        context = self._service.context
        return _Model(id=self._service.name, created=self._created, context_length=context, max_model_len=context)

    async def tokenize(self, exchange: Exchange, tenant: str) -> None:
        async with self._door:
            request = await self._door.read(exchange, decode_tokenize)
            self._check_model(request.model)
            tokens = (await self._service.tokenize(request))[0]
            await exchange.reply(200, encode_tokens(tokens, self._service.context))

    async def count_tokens(self, exchange: Exchange, tenant: str) -> None:
        async with self._door:
            request = await self._door.read(exchange, decode_count)
            self._service.check_model(request.model)
            await exchange.reply(200, encode_count(len((await self._service.tokenize(request))[0])))

    async def detokenize(self, exchange: Exchange, tenant: str) -> None:
        async with self._door:
            model, ids = await self._door.read(exchange, decode_detokenize)
            self._check_model(model)
            await exchange.reply(200, encode_prompt(await self._service.decode(ids)))

    def _check_model(self, model: str) -> None:
        if model:
            self._service.check_model(model)

    async def live(self, exchange: Exchange, tenant: str) -> None:
        """200 while the loops move: this one by answering, the engine's by its heartbeat. 503 means: restart me."""
        backend = self._service.backend
        match backend.state:
            case Down(reason=reason, final=True):
                await self._health(exchange, 503, _Health(status="down", reason=reason))
            case Ready() if backend.heartbeat_age > self._config.engine_silence:
                age = round(backend.heartbeat_age, 1)
                await self._health(exchange, 503, _Health(status="stuck", heartbeat_age=age))
            case _:
                await self._health(exchange, 200, _Health(status="live"))

    async def ready(self, exchange: Exchange, tenant: str) -> None:
        """200 only when a request sent now would be served; then with the engine's own figures."""
        match self._service.backend.state:
            case Ready():
                stats = self._service.backend.stats
                await self._health(exchange, 200, _Health(status="ready", engine=stats))
            case Starting(stage=stage, fraction=fraction):
                await self._health(exchange, 503, _Health(status="starting", stage=stage, fraction=fraction))
            case Down(reason=reason):
                await self._health(exchange, 503, _Health(status="down", reason=reason))

    async def _health(self, exchange: Exchange, status: int, health: _Health) -> None:
        await exchange.reply(status, msgspec.json.encode(health), headers=((b"cache-control", b"no-store"),))


def not_found(path: str) -> StokerError:
    return StokerError(ErrorKind.NOT_FOUND, "unknown_route", f"There is no route {path[:200]}.")
