"""Who may use this server, by the hash of their key. Owns the table; whoever knows tenants (the configuration now, a
database later) fills it. Keys themselves are never here."""

from __future__ import annotations

import hmac
import re
from collections.abc import Iterable

import msgspec

from stoker.config import ConfigError, Tenant

LOCAL = Tenant(name="local", key_sha256="")
"""Everybody, where no tenant is configured."""


class Tenants:
    """Several entries of one name are several keys of one tenant."""

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        self._keys: list[tuple[bytes, Tenant]] = []
        self._names: dict[str, Tenant] = {}
        self.replace(tenants)

    def replace(self, tenants: Iterable[Tenant]) -> None:
        """These and no others from now on. Raises ConfigError, and changes nothing, for a `key_sha256` that is no
        SHA-256 digest, a key of two tenants, or a tenant whose entries say different things."""
        keys: dict[bytes, Tenant] = {}
        names: dict[str, Tenant] = {}
        for tenant in tenants:
            digest = _digest(tenant)
            if digest in keys:
                raise ConfigError(f"tenants: {tenant.name} and {keys[digest].name} have the same key")
            first = names.setdefault(tenant.name, tenant)
            if msgspec.structs.replace(tenant, key_sha256=first.key_sha256) != first:
                raise ConfigError(f"tenants: the entries of {tenant.name} must differ in their keys only")
            keys[digest] = tenant
        self._keys, self._names = list(keys.items()), names

    def __len__(self) -> int:
        """Tenants, not keys."""
        return len(self._names)

    def find(self, digest: bytes) -> Tenant | None:
        """Whose key has this SHA-256 digest. Takes as long for a wrong key as for a right one."""
        found: Tenant | None = None
        for known, tenant in self._keys:
            if hmac.compare_digest(known, digest):
                found = tenant
        return found

    def get(self, name: str) -> Tenant:
        """The tenant of this name; one with nothing but defaults if there is none."""
        return self._names.get(name, LOCAL)


def _digest(tenant: Tenant) -> bytes:
    if not re.fullmatch(r"[0-9a-fA-F]{64}", tenant.key_sha256):
        raise ConfigError(f"tenants: key_sha256 of {tenant.name} must be the 64 hex digits of a SHA-256 digest")
    return bytes.fromhex(tenant.key_sha256)
