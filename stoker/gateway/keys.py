"""Static API keys: which tenant a request belongs to. Only hashes of keys are known here."""

from __future__ import annotations

import hashlib
import hmac
import re

from stoker.config import ConfigError, Tenant
from stoker.gateway.http import Exchange
from stoker.types.errors import ErrorKind, StokerError

LOCAL = "local"


class Keys:
    """Without any tenant every request is the tenant `local`; with some, a known key is required."""

    def __init__(self, tenants: tuple[Tenant, ...]) -> None:
        """Raises ConfigError for a tenant whose `key_sha256` is no SHA-256 digest."""
        self._tenants = [(_digest(tenant), tenant.name) for tenant in tenants]

    @property
    def required(self) -> bool:
        return bool(self._tenants)

    def identify(self, exchange: Exchange) -> str:
        """The tenant's name. Raises StokerError (AUTH)."""
        if not self._tenants:
            return LOCAL
        key = _key(exchange)
        if key is None:
            raise StokerError(
                ErrorKind.AUTH, "missing_api_key", "An API key is needed: 'authorization: Bearer KEY' or 'x-api-key'."
            )
        digest = hashlib.sha256(key.encode("latin-1")).digest()
        found: str | None = None
        for known, name in self._tenants:  # all of them, so the time taken tells nothing
            if hmac.compare_digest(known, digest):
                found = name
        if found is None:
            raise StokerError(ErrorKind.AUTH, "invalid_api_key", "This API key is not known.")
        return found


def _digest(tenant: Tenant) -> bytes:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", tenant.key_sha256):
        raise ConfigError(f"tenants: key_sha256 of {tenant.name} must be the 64 hex digits of a SHA-256 digest")
    return bytes.fromhex(tenant.key_sha256)


def _key(exchange: Exchange) -> str | None:
    scheme, _, credentials = (exchange.header(b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and credentials.strip():
        return credentials.strip()
    return exchange.header(b"x-api-key")
