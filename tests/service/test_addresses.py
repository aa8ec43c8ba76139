"""Nothing but the public internet, in whatever notation."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.service.addresses import is_public, resolve

PRIVATE = [
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "10.255.255.255", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.0.3",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.1", "192.0.2.1", "192.168.1.1", "198.18.0.1",
    "198.51.100.7", "203.0.113.9", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255",
]  # fmt: skip
PRIVATE_6 = [
    "::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1", "ff0e::1", "2001:db8::1",
    "2001::1", "2001:10::1", "3fff::1", "5f00::1", "100::1", "64:ff9b:1::a00:1",
]  # fmt: skip
CARRIERS = ["::{}", "::ffff:{}", "::ffff:0:{}", "64:ff9b::{}"]
PUBLIC = ["1.1.1.1", "8.8.8.8", "93.184.216.34", "172.32.0.1", "100.128.0.1", "192.167.255.255", "223.255.255.254"]
PUBLIC_6 = ["2606:4700:4700::1111", "2a00:1450:4001:80b::200e", "2003::1"]


def six_to_four(address: str) -> str:
    return f"2002:{int(IPv4Address(address)) >> 16:x}:{int(IPv4Address(address)) & 0xFFFF:x}::1"


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_also_inside_of_others(address: str) -> None:
    assert not is_public(ip_address(address))
    assert not is_public(ip_address(six_to_four(address)))
    for carrier in CARRIERS:
        assert not is_public(ip_address(carrier.format(address))), carrier


@pytest.mark.parametrize("address", PRIVATE_6)
def test_private_addresses_of_six(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", [*PUBLIC, *PUBLIC_6, *(f"::ffff:{address}" for address in PUBLIC)])
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))


@given(st.ip_addresses(v=4))
def test_an_address_is_as_public_inside_of_another_as_by_itself(address: IPv4Address) -> None:
    expected = is_public(address)
    assert is_public(ip_address(f"::ffff:{address}")) == is_public(ip_address(f"64:ff9b::{address}")) == expected
    assert not (
        expected and any(address in IPv4Network(net) for net in ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16"))
    )


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0x7f000001", "2130706433", "017700000001", "localhost", "::1", "::ffff:127.0.0.1"]
)
async def test_whatever_a_host_is_called_the_address_counts(host: str) -> None:
    found = await resolve(host, 443)
    assert found
    assert not any(map(is_public, found))
