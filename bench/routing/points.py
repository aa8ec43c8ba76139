"""Where policies are compared: a trace, a cache size, and a load that is found anew for every seed.

The load is the one at which a reference policy keeps the fleet's prefill busy for a share of the time: `rr` round
robin, `pool` one shared cache. `rr0.85` is light for a good router, `pool0.85` is close to what any could carry. Every
policy then meets the same load.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path as File
from typing import Literal

import msgspec

from bench.routing.cache import Cache
from bench.routing.opponents import Chooser, Costs, LeastTokens, Pool, RoundRobin, Tree
from bench.routing.product import Product
from bench.routing.simulation import WARM_SHARE, Clock, Outcome, Simulation
from bench.routing.traces import Agents, Arrivals, agents, mooncake
from stoker.fleet.router import RouterConfig

Trace = Literal["conversation", "synthetic", "agent"]
Traffic = Arrivals | Agents
FOLDERS: dict[Trace, str] = {"conversation": "mooncake", "synthetic": "mooncake", "agent": "agent"}
WINDOWS = {"conversation": 1800.0, "synthetic": 1100.0}  # seconds of the trace that are used
MOST_STARTS = 0.2  # sessions per second and replica: beyond what any cache carries
OPPONENTS = ("rr", "lot", "tree", "dcost4", "pool")
HARDER = 1.1  # load of the run that shows a collapse


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """`replicas` in the fleet; `share` of the traces' time that is used, 1 is all."""

    replicas: int = 16
    share: float = 1.0
    agent_seconds: float = 1800.0
    searches: int = 8


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """`capacity` in tokens of a replica's cache; `NN%` is that part of all the trace's tokens, over the whole fleet.
    With `steep`, a run at a 10 % higher load shows whether the hit share collapses."""

    trace: Trace
    load: str
    capacity: str
    steep: bool = False

    def tokens(self, traffic: Traffic, replicas: int) -> int:
        if self.capacity.endswith("%") and isinstance(traffic, Arrivals):
            return int(traffic.unique * float(self.capacity[:-1]) / 100 / replicas)
        return int(float(self.capacity.removesuffix("M")) * 1e6)

    @property
    def reference(self) -> tuple[str, float]:
        """Policy and busy share that define the load."""
        policy = "rr" if self.load.startswith("rr") else "pool"
        return policy, float(self.load.removeprefix(policy))


def load(folder: File, trace: Trace, seed: int, scale: Scale) -> Traffic:
    if trace == "agent":
        return agents(folder / "agent", seed)
    file = folder / "mooncake" / f"{trace}_trace.jsonl"
    return mooncake(file, trace, max(1, scale.replicas // 4), WINDOWS[trace] * scale.share, seed)


def present(folder: File, trace: Trace) -> bool:
    if trace == "agent":
        return any((folder / "agent").glob("*.json"))
    return (folder / "mooncake" / f"{trace}_trace.jsonl").is_file()


class Rig:
    """One point with one seed's traffic: finds its load and runs policies at it."""

    def __init__(self, point: Point, traffic: Traffic, seed: int, scale: Scale) -> None:
        self.traffic, self.seed, self.scale = traffic, seed, scale
        self.capacity = point.tokens(traffic, scale.replicas)
        self.load = self._find(*point.reference)

    def run(self, policy: str, times: float = 1.0) -> Outcome:
        """`policy` is an opponent's name, or one of the product's. At `times` the load."""
        return self._run(policy, self.load * times)

    def _run(self, policy: str, load: float) -> Outcome:
        """`load` in sessions per second and replica (agents), or times the recorded pace (the others)."""
        replicas, traffic, clock = self.scale.replicas, self.traffic, Clock()
        tokens = list(traffic.tokens)
        shared = Cache(self.capacity * replicas, tokens)
        caches = [shared if policy == "pool" else Cache(self.capacity, tokens) for _ in range(replicas)]
        chooser = self._chooser(policy, tokens, shared, clock)
        warm = WARM_SHARE * self.scale.agent_seconds if isinstance(traffic, Agents) else 0.0
        run = Simulation(caches, chooser, clock, warm=warm, tell=isinstance(chooser, Product))
        if isinstance(traffic, Agents):
            return run.closed(traffic, tokens, load * replicas, self.scale.agent_seconds)
        return run.open(traffic, 1 / load)

    def _chooser(self, policy: str, tokens: list[int], shared: Cache, clock: Clock) -> Chooser:
        replicas, seed = self.scale.replicas, self.seed
        makers: dict[str, Callable[[], Chooser]] = {
            "rr": lambda: RoundRobin(replicas, seed),
            "lot": lambda: LeastTokens(replicas, seed),
            "tree": lambda: Tree(replicas, seed, self.capacity, tokens),
            "dcost4": lambda: Costs(replicas, seed, self.capacity, tokens, 4.0),
            "pool": lambda: Pool(replicas, seed, shared),
        }
        if policy in makers:
            return makers[policy]()
        # All is served, as by the others: whoever refuses the last sessions has an easy time with the rest.
        return Product(replicas, self.capacity, tokens, RouterConfig(policy=policy, admit_wait=0.0), clock)

    def _find(self, policy: str, busy: float) -> float:
        traffic, replicas = self.traffic, self.scale.replicas
        if isinstance(traffic, Arrivals):
            work = self._run(policy, 1.0).work
            return traffic.calls[-1][0] * replicas * busy / work
        low, high = 0.0, MOST_STARTS
        for _ in range(self.scale.searches):
            middle = (low + high) / 2
            outcome = self._run(policy, middle)
            if max(outcome.busy, outcome.slots_busy) < busy:
                low = middle
            else:
                high = middle
        return (low + high) / 2
