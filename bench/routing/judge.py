"""What was found at each point, over all seeds, against what must hold and against what is aimed at.

Must hold, by the median over the seeds: at least 0.97 of `dcost4`'s hit share, at most 1.15 times (chat) or 1.3 times
(agents) its p99 to first token, at least 0.95 of `tree`'s hit share, and no collapse: a 10 % higher load costs no more
of the hit share than the shared pool loses, and 5 points. Single p99 values that differ by less are noise.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from bench.routing.points import Point
from bench.routing.simulation import Outcome

HIT_OF_DCOST4, HIT_OF_TREE, COLLAPSE = 0.97, 0.95, 0.05
P99_OF_DCOST4 = {"conversation": 1.15, "synthetic": 1.15, "agent": 1.3}


class Found(msgspec.Struct, kw_only=True):
    """One point with one seed: outcomes by policy, and those at the higher load."""

    point: Point
    seed: int
    policy: str
    load: float
    capacity: int
    at: dict[str, Outcome]
    harder: dict[str, Outcome] = {}

    @property
    def own(self) -> Outcome:
        return self.at[self.policy]

    def hit(self, of: str) -> float:
        return self.own.hit / self.at[of].hit

    def p99(self, of: str) -> float:
        return self.own.p99 / self.at[of].p99

    @property
    def collapse(self) -> float:
        """Hit share lost at the higher load, beyond what the pool loses; 0 where that was not run."""
        if not self.harder:
            return 0.0
        lost = {name: self.at[name].hit - self.harder[name].hit for name in (self.policy, "pool")}
        return lost[self.policy] - max(lost["pool"], 0.0)


class Verdict(msgspec.Struct, kw_only=True):
    """Medians over the seeds, and what of it is not as it must be."""

    point: Point
    hit_of_dcost4: float
    p99_of_dcost4: float
    hit_of_tree: float
    collapse: float
    missed: list[str]


def judge(found: Sequence[Found]) -> list[Verdict]:
    points = list(dict.fromkeys(one.point for one in found))
    return [_verdict(point, [one for one in found if one.point == point]) for point in points]


def _verdict(point: Point, found: Sequence[Found]) -> Verdict:
    def median(value: Callable[[Found], float]) -> float:
        return statistics.median(value(one) for one in found)

    hit, p99 = median(lambda one: one.hit("dcost4")), median(lambda one: one.p99("dcost4"))
    tree, collapse = median(lambda one: one.hit("tree")), median(lambda one: one.collapse)
    most = P99_OF_DCOST4[point.trace]
    missed: list[str] = []
    if not hit >= HIT_OF_DCOST4:
        missed.append(f"hit is {hit:.3f} of dcost4's, must be {HIT_OF_DCOST4}")
    if not p99 <= most:
        missed.append(f"p99 is {p99:.2f} of dcost4's, may be {most}")
    if not tree >= HIT_OF_TREE:
        missed.append(f"hit is {tree:.3f} of tree's, must be {HIT_OF_TREE}")
    if not collapse <= COLLAPSE:
        missed.append(f"10 % more load costs {collapse:.3f} more hit than the pool's, may be {COLLAPSE}")
    return Verdict(
        point=point, hit_of_dcost4=hit, p99_of_dcost4=p99, hit_of_tree=tree, collapse=collapse, missed=missed
    )


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What the best known policies reach, together, at points of one kind. Not required; None is no bar."""

    trace: str
    load: str
    capacities: tuple[str, ...]
    hit: float
    p99_rr: float
    p99_pool: float
    skew: float | None


GOALS = (
    Goal(trace="conversation", load="rr0.6", capacities=("5.7M",), hit=0.92, p99_rr=0.5, p99_pool=1.05, skew=1.1),
    Goal(trace="conversation", load="rr0.85", capacities=("0.7M",), hit=0.92, p99_rr=0.21, p99_pool=1.07, skew=1.07),
    Goal(trace="conversation", load="rr0.85", capacities=("5.7M",), hit=0.95, p99_rr=0.21, p99_pool=1.07, skew=1.07),
    Goal(trace="conversation", load="pool0.85", capacities=("5.7M",), hit=0.97, p99_rr=0.05, p99_pool=1.25, skew=1.03),
    Goal(trace="synthetic", load="rr0.85", capacities=("5.7M",), hit=0.98, p99_rr=0.05, p99_pool=1.06, skew=1.12),
    Goal(trace="synthetic", load="pool0.85", capacities=("25%",), hit=0.98, p99_rr=0.14, p99_pool=1.02, skew=1.04),
    Goal(trace="agent", load="rr0.85", capacities=("0.7M",), hit=0.97, p99_rr=0.23, p99_pool=1.15, skew=1.6),
    Goal(trace="agent", load="rr0.85", capacities=("2M", "5.7M"), hit=0.99, p99_rr=0.07, p99_pool=1.4, skew=2.2),
    Goal(trace="agent", load="pool0.6", capacities=("0.7M",), hit=0.91, p99_rr=0.12, p99_pool=1.2, skew=1.16),
    Goal(trace="agent", load="pool0.6", capacities=("2M", "5.7M"), hit=0.97, p99_rr=0.035, p99_pool=1.6, skew=1.26),
    Goal(trace="agent", load="pool0.85", capacities=("5.7M",), hit=0.98, p99_rr=0.034, p99_pool=1.75, skew=1.07),
)


class Reached(msgspec.Struct, kw_only=True):
    """One goal at one point, medians over the seeds."""

    goal: Goal
    capacity: str
    hit: float
    p99_rr: float
    p99_pool: float
    skew: float
    met: bool


def goals(found: Sequence[Found]) -> list[Reached]:
    reached: list[Reached] = []
    for goal in GOALS:
        for capacity in goal.capacities:
            here = [
                one
                for one in found
                if (one.point.trace, one.point.load, one.point.capacity) == (goal.trace, goal.load, capacity)
            ]
            if here:
                reached.append(_reached(goal, capacity, here))
    return reached


def _reached(goal: Goal, capacity: str, found: Sequence[Found]) -> Reached:
    hit = statistics.median(one.hit("pool") for one in found)
    p99_rr = statistics.median(one.p99("rr") for one in found)
    p99_pool = statistics.median(one.p99("pool") for one in found)
    skew = statistics.median(one.own.skew for one in found)
    met = hit >= goal.hit and p99_rr <= goal.p99_rr and p99_pool <= goal.p99_pool
    met = met and (goal.skew is None or skew <= goal.skew)
    return Reached(goal=goal, capacity=capacity, hit=hit, p99_rr=p99_rr, p99_pool=p99_pool, skew=skew, met=met)
