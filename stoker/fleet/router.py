"""Which replica gets a request: candidates, a policy's choice, and the books that the next choice is made from.

Owns the replicas of one model as routing sees them, their load, the index of their caches, and the sessions' bindings.
Does not send anything, start or stop anybody, or wait: the pool asks, dispatches and reports. Pure Python with a given
clock: no sockets, no event loop, so tests, `bench.routing` and a simulator run the real one.

One request: `route` (changes nothing), `dispatch` as the request is sent, `begun` with its first token, `progressed`
with each later one, `finished` however it ended. One replica: `add`, then `snapshot` and `events` as its engine sends
them, `stats` with each heartbeat.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from stoker.fleet.backend import RoutingFigures
from stoker.fleet.routing.bindings import Binding, Bindings
from stoker.fleet.routing.index import PrefixIndex
from stoker.fleet.routing.load import Flight
from stoker.fleet.routing.policies import make_policy
from stoker.fleet.routing.policy import NOMINAL_RATE, Ask, seconds
from stoker.fleet.routing.pressure import Pressure
from stoker.fleet.routing.replica import Replica
from stoker.fleet.routing.words import (
    Decision,
    Denial,
    IndexState,
    NoReplica,
    Reason,
    ReplicaInfo,
    RouterConfig,
    RouteRequest,
)
from stoker.types.wire import EngineStats, KVEvents, KVSnapshot

__all__ = [
    "Decision",
    "Denial",
    "IndexState",
    "NoReplica",
    "Reason",
    "ReplicaInfo",
    "RouteRequest",
    "Router",
    "RouterConfig",
]

NONE: frozenset[str] = frozenset()


class Router:
    """All methods return at once. `clock` counts seconds; only differences matter."""

    def __init__(self, config: RouterConfig | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config or RouterConfig()
        self.reasons: Counter[Reason] = Counter()  # of dispatched decisions
        self.index = PrefixIndex()
        self.replicas: dict[str, Replica] = {}
        self.bindings = Bindings(self.config.sessions, self.config.session_idle, self.config.live)
        self.pressure = Pressure()
        self._clock = clock
        self._policy = make_policy(self.config)
        self._where: dict[str, str] = {}  # request -> replica, while it is in flight

    def add(self, info: ReplicaInfo) -> None:
        """A replica serves from now on, with an empty cache. Raises ValueError for a name that is known."""
        if info.name in self.replicas:
            raise ValueError(f"the router knows a replica {info.name!r} already")
        if info.block_tokens < 1 or info.slots < 1:
            raise ValueError(f"replica {info.name!r} needs at least one slot and one token in a block")
        used = {replica.number for replica in self.replicas.values()}
        number = next(n for n in range(len(used) + 1) if n not in used)
        transfer = self.config.transfer.get(info.zone, 0.0)
        self.replicas[info.name] = Replica(info, number, self.index, transfer)

    def remove(self, name: str) -> None:
        """It serves no more; what it had in flight counts as finished. Harmless for an unknown name."""
        replica = self.replicas.pop(name, None)
        if replica is not None:
            replica.view.clear()
            for request in replica.load.flights:
                del self._where[request]

    def drain(self, name: str, draining: bool = True) -> None:
        """Take no new sessions. Those that are there may stay, wherever the policy still prefers it."""
        self.replicas[name].draining = draining

    def route(self, request: RouteRequest, exclude: frozenset[str] = NONE) -> Decision:
        """Choose. Raises NoReplica when none may take it."""
        now = self._clock()
        bound = self._binding(request, now)
        replicas = self._candidates(request, exclude, bound)
        depths = self.index.depths(request.blocks, sum(1 << replica.number for replica in replicas))
        most = request.tokens - 1  # the last token is always computed: its logits are what is asked for
        matched = [
            min(depths.get(replica.number, 0) * replica.info.block_tokens, most) if most > 0 else 0
            for replica in replicas
        ]
        busy = self.pressure.busy(now, len(self.replicas))
        ask = Ask(request, replicas, matched, bound, now, self._mean_rate(), busy, self.pressure.reuse)
        at, reason = self._policy.choose(ask)
        predicted = seconds(ask, at)
        if request.session is not None and bound is None:
            self._admit(request, replicas, predicted - (request.tokens - matched[at]) / ask.rates(replicas[at]), now)
        name = replicas[at].info.name
        if len(replicas) == 1:
            reason = Reason.ONLY
        elif bound is not None and all(replica.info.name != bound.replica for replica in replicas):
            reason = Reason.AWAY
        return Decision(
            replica=name,
            reason=reason,
            matched=matched[at],
            seconds=predicted,
            bound=bound.replica if bound is not None else None,
        )

    def dispatch(self, request: RouteRequest, decision: Decision) -> None:
        """The request is sent now. Raises KeyError if the replica has gone, ValueError if the request is in flight."""
        replica = self.replicas[decision.replica]
        if request.id in self._where:
            raise ValueError(f"request {request.id!r} is in flight already")
        now = self._clock()
        flight = Flight(
            tokens=request.tokens,
            uncached=request.tokens - decision.matched,
            lane=request.lane,
            ticket=replica.view.dispatched(request.blocks, now),
            sent=now,
        )
        rate = replica.load.rate or self._mean_rate()
        self.pressure.sent(flight.uncached / rate, flight.ticket.since, now)
        replica.load.sent(request.id, flight)
        self._where[request.id] = decision.replica
        self.reasons[decision.reason] += 1
        if request.session is not None:
            self.bindings.bind((request.tenant, request.session), decision.replica, request.tokens, now)

    def begun(self, request: str, cached: int) -> None:
        """Its first token came; `cached` prompt tokens were not computed. Later calls change nothing."""
        replica = self._at(request)
        flight = replica.load.begun(request, cached, self._clock()) if replica else None
        if replica and flight:
            replica.view.begun(flight.ticket)

    def progressed(self, request: str, tokens: int) -> None:
        """So many more output tokens."""
        replica = self._at(request)
        if replica:
            replica.load.progressed(request, tokens)

    def finished(self, request: str) -> None:
        """It has ended, in whatever way. Later calls change nothing."""
        replica = self._at(request)
        flight = replica.load.finished(request, self._clock()) if replica else None
        if replica and flight:
            del self._where[request]
            if flight.began is None:
                replica.view.abandoned(flight.ticket)

    def events(self, name: str, news: KVEvents) -> bool:
        """What changed in a replica's cache. False: something was missed, subscribe again. True for unknown names."""
        replica = self.replicas.get(name)
        return replica is None or replica.events(news, self._clock())

    def snapshot(self, name: str, part: KVSnapshot) -> None:
        """A part of what a replica has cached."""
        replica = self.replicas.get(name)
        if replica is not None:
            replica.snapshot(part, self._clock())

    def stats(self, name: str, stats: EngineStats) -> bool:
        """A replica's heartbeat. False: its events were missed, subscribe again."""
        replica = self.replicas.get(name)
        return replica is None or replica.stats(stats)

    def state(self, name: str) -> IndexState:
        return self.replicas[name].state

    def figures(self) -> RoutingFigures:
        """What it has decided and knows now."""
        return RoutingFigures(
            decisions={reason.value: self.reasons[reason] for reason in Reason},
            index={name: replica.state.value for name, replica in self.replicas.items()},
            gaps={name: replica.gaps for name, replica in self.replicas.items()},
            sessions=len(self.bindings),
            blocks=len(self.index),
        )

    def _at(self, request: str) -> Replica | None:
        name = self._where.get(request)
        return self.replicas[name] if name is not None else None

    def _binding(self, request: RouteRequest, now: float) -> Binding | None:
        if request.session is None:
            return None
        return self.bindings.get((request.tenant, request.session), now)

    def _candidates(self, request: RouteRequest, exclude: frozenset[str], bound: Binding | None) -> list[Replica]:
        if not self.replicas:
            raise NoReplica(Denial.NONE)
        there = [r for r in self.replicas.values() if request.zone is None or r.info.zone == request.zone]
        if not there:
            raise NoReplica(Denial.ZONE)
        left = [r for r in there if r.info.name not in exclude]
        if not left:
            raise NoReplica(Denial.EXCLUDED)
        home = bound.replica if bound is not None else None
        left = [r for r in left if not r.draining or r.info.name == home]
        if not left:
            raise NoReplica(Denial.DRAINING)
        return left

    def _admit(self, request: RouteRequest, replicas: Sequence[Replica], wait: float, now: float) -> None:
        """Past the point where contexts no longer fit, each new session makes all others compute theirs again, so
        the fleet does less the more it is asked. Raises NoReplica for a new session where that has begun."""
        if not self.config.admit_wait or wait <= self.config.admit_wait:
            return
        capacity = sum(replica.view.capacity * replica.info.block_tokens for replica in replicas)
        live = self.bindings.context([replica.info.name for replica in replicas], now)
        if live + request.tokens > capacity:
            raise NoReplica(Denial.WORKING_SET)

    def _mean_rate(self) -> float:
        known = [replica.load.rate for replica in self.replicas.values() if replica.load.rate]
        return sum(known) / len(known) if known else NOMINAL_RATE
