"""The table of tenants: what may not be in it, and that a wrong table changes nothing."""

from __future__ import annotations

import hashlib

import pytest

from stoker.config import ConfigError, Tenant
from stoker.service.tenants import LOCAL, Tenants


def tenant(name: str, key: str, **more: bool) -> Tenant:
    return Tenant(name=name, key_sha256=hashlib.sha256(key.encode()).hexdigest(), **more)


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def test_keys_lead_to_tenants() -> None:
    ann, second, bob = tenant("ann", "a"), tenant("ann", "b"), tenant("bob", "c", retain=False)
    tenants = Tenants((ann, second, bob))
    assert len(tenants) == 2
    assert [tenants.find(digest(key)) for key in "abcd"] == [ann, second, bob, None]
    assert (tenants.get("bob"), tenants.get("nobody")) == (bob, LOCAL)


@pytest.mark.parametrize("wrong", ["", "key-a", "0" * 63, "g" * 64])
def test_a_key_hash_that_is_none(wrong: str) -> None:
    with pytest.raises(ConfigError, match=r"key_sha256 of ann"):
        Tenants((Tenant(name="ann", key_sha256=wrong),))


def test_a_wrong_table_changes_nothing() -> None:
    tenants = Tenants((tenant("ann", "a"),))
    with pytest.raises(ConfigError, match="bob and ann have the same key"):
        tenants.replace((tenant("ann", "x"), tenant("bob", "x")))
    with pytest.raises(ConfigError, match="ann must differ in their keys only"):
        tenants.replace((tenant("ann", "x"), tenant("ann", "y", retain=False)))
    assert [tenants.find(digest(key)) is not None for key in "axy"] == [True, False, False]
    tenants.replace((tenant("bob", "x"),))
    assert [tenants.find(digest(key)) is not None for key in "axy"] == [False, True, False]
