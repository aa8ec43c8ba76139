"""POST /v1/responses: the one dialect that goes on from an answer it gave before."""

from __future__ import annotations

import msgspec

from stoker.config import GatewayConfig, Tenant
from stoker.dialects.encoder import StreamEncoder, WholeEncoder
from stoker.dialects.openai_responses import ResponsesRequest, decode_responses, with_history
from stoker.dialects.openai_responses_encode import ResponsesStream, ResponsesWhole
from stoker.gateway.generate import Door, GenerateRoute
from stoker.service.catalog import Catalog
from stoker.service.memory import Memory
from stoker.service.tenants import Tenants
from stoker.types.errors import invalid


class ResponsesRoute(GenerateRoute[ResponsesRequest]):
    """Keeps conversations as far as requests ask for it, tenants allow it, and `config.memory` has room."""

    def __init__(self, catalog: Catalog, config: GatewayConfig, door: Door, tenants: Tenants) -> None:
        super().__init__(
            catalog,
            config,
            door,
            prefix="resp_",
            decode=decode_responses,
            stream=ResponsesStream,
            whole=ResponsesWhole,
        )
        self._memory = Memory(lambda: config.memory // max(1, len(tenants)), config.memory_seconds)

    def complete(self, request: ResponsesRequest, tenant: Tenant) -> ResponsesRequest:
        earlier = ()
        if request.previous is not None:
            earlier = self._memory.get(tenant.name, request.previous)
            if earlier is None:
                raise invalid(
                    "previous_response_not_found",
                    f"There is no response '{request.previous}' to go on from: not stored, or too long ago.",
                    param="previous_response_id",
                )
        store = request.store and self._config.memory > 0 and tenant.retain
        return with_history(msgspec.structs.replace(request, store=store), earlier)

    def keep(self, encoder: StreamEncoder | WholeEncoder, request: ResponsesRequest, tenant: Tenant) -> None:
        assert isinstance(encoder, ResponsesStream | ResponsesWhole)
        if request.store:
            turns = request.messages if request.instructions is None else request.messages[1:]
            self._memory.put(tenant.name, encoder.id, (*turns, encoder.blocks.message))
