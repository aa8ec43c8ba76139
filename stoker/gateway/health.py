"""Health: whether the loops move, and which models would answer a request sent now."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from stoker.config import GatewayConfig, Tenant
from stoker.fleet.backend import Down, ReplicaStatus, Starting
from stoker.gateway.http import Exchange
from stoker.service.catalog import Catalog
from stoker.service.pipeline import Service
from stoker.types.wire import Ready


class ModelHealth(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`status` is ready, starting, down, or stuck: no engine that should serve has shown a sign of life lately."""

    status: str
    stage: str | None = None
    fraction: float | None = None
    reason: str | None = None
    replicas: Mapping[str, ReplicaStatus] = {}


class _Health(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    status: str
    models: dict[str, ModelHealth] = {}


class HealthRoutes:
    """`ready` waits for every model once. From then on the server is ready as long as one of them serves: a client of
    another is told by its own request."""

    def __init__(self, catalog: Catalog, config: GatewayConfig) -> None:
        self._catalog = catalog
        self._config = config
        self._started = False

    async def live(self, exchange: Exchange, tenant: Tenant) -> None:
        """200 while the loops move: this one by answering, the engines' by their heartbeat. 503 means: restart me."""
        models = self._models()
        lost = {name: model for name, model in models.items() if self._is_lost(name)}
        alive = not models or len(lost) < len(models)
        await _reply(exchange, _Health(status="live", models=lost) if alive else _Health(status="dead", models=lost))

    async def ready(self, exchange: Exchange, tenant: Tenant) -> None:
        models = self._models()
        serving = sum(model.status == "ready" for model in models.values())
        self._started = self._started or serving == len(models) > 0
        if self._started and serving:
            status = "ready" if serving == len(models) else "degraded"
        else:
            status = "starting" if any(model.status == "starting" for model in models.values()) else "down"
        await _reply(exchange, _Health(status=status, models=models))

    def _models(self) -> dict[str, ModelHealth]:
        return {service.name: self._health(service) for service in self._catalog}

    def _health(self, service: Service) -> ModelHealth:
        replicas = service.backend.replicas()
        match service.backend.state:
            case Ready():
                ages = [status.heartbeat_age for status in replicas.values() if status.heartbeat_age is not None]
                stuck = min(ages, default=0.0) > self._config.engine_silence
                return ModelHealth(status="stuck" if stuck else "ready", replicas=replicas)
            case Starting(stage=stage, fraction=fraction):
                return ModelHealth(status="starting", stage=stage, fraction=fraction, replicas=replicas)
            case Down(reason=reason):
                return ModelHealth(status="down", reason=reason, replicas=replicas)

    def _is_lost(self, name: str) -> bool:
        """Nothing that this server does by itself will mend it."""
        service = self._catalog.find(name)
        state = service.backend.state
        return (isinstance(state, Down) and state.final) or self._health(service).status == "stuck"


async def _reply(exchange: Exchange, health: _Health) -> None:
    status = 200 if health.status in ("live", "ready", "degraded") else 503
    await exchange.reply(status, msgspec.json.encode(health), headers=((b"cache-control", b"no-store"),))
