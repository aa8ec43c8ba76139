"""API keys: which tenant a request belongs to. Only hashes of keys are known here."""

from __future__ import annotations

import hashlib

from stoker.config import Tenant
from stoker.gateway.http import Exchange
from stoker.service.tenants import LOCAL, Tenants
from stoker.types.errors import ErrorKind, StokerError


class Keys:
    """Without any tenant every request is the tenant `local`; with some, a known key is required."""

    def __init__(self, tenants: Tenants) -> None:
        self._tenants = tenants

    @property
    def required(self) -> bool:
        return len(self._tenants) > 0

    def identify(self, exchange: Exchange) -> Tenant:
        """Raises StokerError (AUTH)."""
        if not self.required:
            return LOCAL
        key = _key(exchange)
        if key is None:
            raise StokerError(
                ErrorKind.AUTH, "missing_api_key", "An API key is needed: 'authorization: Bearer KEY' or 'x-api-key'."
            )
        found = self._tenants.find(hashlib.sha256(key.encode("latin-1")).digest())
        if found is None:
            raise StokerError(ErrorKind.AUTH, "invalid_api_key", "This API key is not known.")
        return found


def _key(exchange: Exchange) -> str | None:
    scheme, _, credentials = (exchange.header(b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return exchange.header(b"x-api-key")
