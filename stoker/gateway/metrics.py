"""`/metrics`: what is counted, for Prometheus. No key is asked for, so it is told only who may know.

It has no content and names no tenant, yet how busy a server is may be nobody's business: unless told otherwise it is
answered only to clients on this machine, among them a proxy that runs here.
"""

from __future__ import annotations

from stoker.config import GatewayConfig, Tenant
from stoker.gateway.hosts import is_loopback
from stoker.gateway.http import Exchange
from stoker.gateway.info import not_found
from stoker.obs.metrics import Metrics


class MetricsRoute:
    def __init__(self, metrics: Metrics, config: GatewayConfig) -> None:
        self._metrics = metrics
        self._shown = config.metrics

    async def __call__(self, exchange: Exchange, tenant: Tenant) -> None:
        if not (self._shown == "all" or (self._shown == "local" and is_loopback(exchange.client))):
            raise not_found(exchange.path)
        body, content_type = self._metrics.expose(exchange.header(b"accept") or "")
        await exchange.reply(200, body, content_type=content_type.encode())
