"""The one interface of all policies, and what they are told.

A policy is stateless towards requests: it sees the replicas that may take this one, and names one of them. Who may take
it at all (zones, drains, exclusions) was decided before; what follows (bindings, views, load) happens after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple, Protocol

from stoker.fleet.routing.bindings import Binding
from stoker.fleet.routing.replica import Replica
from stoker.fleet.routing.words import Reason, RouteRequest

NOMINAL_RATE = 4000.0  # tokens per second, while no replica's is known: then only the order of loads counts
MASK = (1 << 64) - 1


@dataclass(slots=True, frozen=True)
class Ask:
    """`matched[i]` tokens of the prompt are believed to be cached on `replicas[i]`, of which there is at least one.

    `rate` is the fleet's mean prefill rate, for replicas whose own is unknown. `busy` and `reuse` are the fleet's
    pressure (`pressure.py`).
    """

    request: RouteRequest
    replicas: Sequence[Replica]
    matched: Sequence[int]
    bound: Binding | None
    now: float
    rate: float
    busy: float
    reuse: float

    def rates(self, replica: Replica) -> float:
        return replica.load.rate or self.rate


class Choice(NamedTuple):
    """`at` counts in `Ask.replicas`."""

    at: int
    reason: Reason


class Policy(Protocol):
    def choose(self, ask: Ask) -> Choice: ...


def key_hash(request: RouteRequest) -> int:
    """64 bits of (tenant, session); of the prompt's first block where there is no session, else of the request."""
    name = request.session.encode() if request.session is not None else b"".join(request.blocks[:1])
    key = len(request.tenant).to_bytes(4) + request.tenant.encode() + (name or request.id.encode())
    return int.from_bytes(blake2b(key, digest_size=8).digest())


def rank(key: int, salt: int) -> int:
    """Rendezvous: of several replicas the one with the highest rank. Few keys move when a replica comes or goes."""
    mixed = ((key ^ salt) + 0x9E3779B97F4A7C15) & MASK  # the finaliser of splitmix64 (Steele et al., OOPSLA 2014)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
    return mixed ^ (mixed >> 31)


def first_by_rank(ask: Ask, among: Sequence[int]) -> int:
    if len(among) == 1:
        return among[0]
    key = key_hash(ask.request)
    return max(among, key=lambda at: rank(key, ask.replicas[at].salt))


def seconds(ask: Ask, at: int) -> float:
    """Predicted time to first token on one replica: wait, own prefill, and the way to its zone."""
    replica, request = ask.replicas[at], ask.request
    rate = ask.rates(replica)
    wait = replica.load.wait(request.lane, ask.now, rate)
    return wait + (request.tokens - ask.matched[at]) / rate + replica.transfer
