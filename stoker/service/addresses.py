"""Which addresses a client may make this server connect to: those of the public internet.

A name is resolved once, and what was found is what is connected to: a second answer of its name server changes nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

# Addresses that hold an IPv4 address at some bit, counted from the lowest, and lead to it where somebody translates.
_CARRIERS = (
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (IPv6Network("64:ff9b:1::/48"), 0),
    (IPv6Network("::/96"), 0),
    (IPv6Network("::ffff:0:0/96"), 0),
    (IPv6Network("::ffff:0:0:0/96"), 0),
    (IPv6Network("2002::/16"), 80),  # 6to4
)
_REFUSED = tuple(map(IPv6Network, ("2001::/23", "fec0::/10", "3fff::/20", "5f00::/16")))
MAX_FOUND = 32

Address = IPv4Address | IPv6Address


def is_public(address: Address) -> bool:
    """Not loopback, private, link-local, shared, reserved, multicast or meant for documentation, in any notation."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None or any(address in network for network in _REFUSED):
            return False
        for network, bit in _CARRIERS:
            if address in network:
                return is_public(IPv4Address((int(address) >> bit) & 0xFFFF_FFFF))
    return address.is_global and not address.is_multicast and not address.is_reserved


async def resolve(host: str, port: int) -> Sequence[Address]:
    """All addresses of a name, or of an address in whatever notation the system takes. Raises OSError."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    addresses = dict.fromkeys(ip_address(sockaddr[0]) for _, _, _, _, sockaddr in found[:MAX_FOUND])
    return list(addresses)
