"""The routes that tell: models, tokens, and what this server is."""

from __future__ import annotations

import time

import msgspec

from stoker import __version__
from stoker.config import Tenant
from stoker.dialects.anthropic_encode import encode_count
from stoker.dialects.anthropic_messages import decode_count
from stoker.dialects.tokens import decode_detokenize, decode_tokenize, encode_prompt, encode_tokens
from stoker.gateway.generate import Door
from stoker.gateway.http import Exchange
from stoker.service.catalog import Catalog
from stoker.service.pipeline import Service
from stoker.types.errors import ErrorKind, StokerError, invalid

_BANNER = (
    f"Stoker {__version__}. OpenAI-compatible and Anthropic's API under /v1, described at /openapi.json.\n".encode()
)


class _Model(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "stoker"
    root: str
    context_length: int
    max_model_len: int


class _Models(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[_Model]


class InfoRoutes:
    """Everything but generation."""

    def __init__(self, catalog: Catalog, door: Door) -> None:
        self._catalog = catalog
        self._door = door
        self._created = int(time.time())

    async def banner(self, exchange: Exchange, tenant: Tenant) -> None:
        await exchange.reply(200, _BANNER, content_type=b"text/plain; charset=utf-8")

    async def models(self, exchange: Exchange, tenant: Tenant) -> None:
        await exchange.reply(200, msgspec.json.encode(_Models(data=[*map(self._model, self._catalog.names)])))

    async def model(self, exchange: Exchange, tenant: Tenant) -> None:
        await exchange.reply(200, msgspec.json.encode(self._model(exchange.path.removeprefix("/v1/models/"))))

    def _model(self, name: str) -> _Model:
        service = self._catalog.find(name)
        return _Model(
            id=name,
            created=self._created,
            root=service.name,
            context_length=service.context,
            max_model_len=service.context,
        )

    async def tokenize(self, exchange: Exchange, tenant: Tenant) -> None:
        async with self._door:
            request = await self._door.read(exchange, decode_tokenize)
            service = self._find(request.model)
            tokens = (await service.tokenize(request, owner=_owner(tenant)))[0]
            await exchange.reply(200, encode_tokens(tokens, service.context))

    async def count_tokens(self, exchange: Exchange, tenant: Tenant) -> None:
        async with self._door:
            request = await self._door.read(exchange, decode_count)
            tokens = (await self._catalog.find(request.model).tokenize(request, owner=_owner(tenant)))[0]
            await exchange.reply(200, encode_count(len(tokens)))

    async def detokenize(self, exchange: Exchange, tenant: Tenant) -> None:
        async with self._door:
            model, ids = await self._door.read(exchange, decode_detokenize)
            await exchange.reply(200, encode_prompt(await self._find(model).decode(ids)))

    def _find(self, name: str) -> Service:
        """The model of this name; where there is only one, no name is needed."""
        if not name and len(self._catalog) == 1:
            return next(iter(self._catalog))
        if not name:
            raise invalid("missing_required_parameter", "Several models are served: say which.", param="model")
        return self._catalog.find(name)


def not_found(path: str) -> StokerError:
    return StokerError(ErrorKind.NOT_FOUND, "unknown_route", f"There is no route {path[:200]}.")


def _owner(tenant: Tenant) -> str | None:
    """For whom texts may be remembered."""
    return tenant.name if tenant.retain else None
