"""The application that clients see: its routes, and who may use them."""

from __future__ import annotations

from functools import partial

import msgspec

from stoker.config import GatewayConfig, Tenant
from stoker.dialects.anthropic_encode import MessagesStream, MessagesWhole
from stoker.dialects.anthropic_messages import decode_messages
from stoker.dialects.openai_chat import decode_chat
from stoker.dialects.openai_chat_encode import ChatStream, ChatWhole
from stoker.dialects.openai_completions import CompletionStream, CompletionWhole, decode_completion
from stoker.fleet.collector import FleetCollector
from stoker.gateway.admin import AdminRoutes, check_admin
from stoker.gateway.application import Application
from stoker.gateway.generate import Door, GenerateRoute
from stoker.gateway.health import HealthRoutes
from stoker.gateway.http import Exchange
from stoker.gateway.info import InfoRoutes
from stoker.gateway.keys import Keys
from stoker.gateway.metrics import MetricsRoute
from stoker.gateway.openapi import document
from stoker.gateway.responses import ResponsesRoute
from stoker.obs.metrics import Metrics
from stoker.obs.traces import Traces
from stoker.service.catalog import Catalog
from stoker.service.tenants import Tenants


class Gateway(Application):
    """The application that clients see. A path ending in `/` stands for everything below it."""

    def __init__(
        self,
        catalog: Catalog,
        config: GatewayConfig,
        tenants: Tenants,
        metrics: Metrics,
        traces: Traces,
        admin: AdminRoutes | None,
    ) -> None:
        super().__init__(metrics, traces)
        self._keys = Keys(tenants)
        door = Door(config)
        info = InfoRoutes(catalog, door)
        health = HealthRoutes(catalog, config)
        route = partial(GenerateRoute, catalog, config, door)
        chat = route(prefix="chatcmpl-", decode=decode_chat, stream=ChatStream, whole=ChatWhole)
        completions = route(prefix="cmpl-", decode=decode_completion, stream=CompletionStream, whole=CompletionWhole)
        messages = route(prefix="msg_", decode=decode_messages, stream=MessagesStream, whole=MessagesWhole)
        responses = ResponsesRoute(catalog, config, door, tenants)
        self._document = msgspec.json.encode(document())
        self.routes = {
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
        if admin is not None:
            self.routes |= admin.routes

    @property
    def guarded(self) -> bool:
        """Whether a key is required, so that others than this host may be let in."""
        return self._keys.required

    def identify(self, exchange: Exchange) -> Tenant:
        tenant = self._keys.identify(exchange)
        if exchange.route.startswith("/admin/"):
            check_admin(tenant)
        return tenant

    def find(self, path: str) -> str:
        return "/v1/models/" if path.startswith("/v1/models/") else super().find(path)

    async def _openapi(self, exchange: Exchange, tenant: Tenant) -> None:
        await exchange.reply(200, self._document)


def create_app(
    catalog: Catalog,
    gateway: GatewayConfig,
    tenants: Tenants,
    metrics: Metrics | None = None,
    traces: Traces | None = None,
    admin: AdminRoutes | None = None,
) -> Gateway:
    """The application over the models of `catalog`. With `tenants`, /v1 needs one of their keys. Both may change.
    `metrics` are what /metrics shows, with the engines' own figures; `traces` are where spans go."""
    shown = metrics or Metrics()
    shown.registry.register(FleetCollector(lambda: ((service.name, service.backend) for service in catalog)))
    return Gateway(catalog, gateway, tenants, shown, traces or Traces(), admin)
