"""Policies by name. A new one is a file beside these and a line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stoker.fleet.routing.affinity import Affinity
from stoker.fleet.routing.least_tokens import LeastTokens
from stoker.fleet.routing.policy import Policy
from stoker.fleet.routing.predicted_seconds import PredictedSeconds
from stoker.fleet.routing.round_robin import RoundRobin
from stoker.fleet.routing.words import RouterConfig

POLICIES: Mapping[str, Callable[[RouterConfig], Policy]] = {
    "predicted_seconds": lambda config: PredictedSeconds(config.weight),
    "affinity": lambda _: Affinity(),
    "least_tokens": lambda _: LeastTokens(),
    "round_robin": lambda _: RoundRobin(),
}


def make_policy(config: RouterConfig) -> Policy:
    """Raises ValueError for a name that is none."""
    make = POLICIES.get(config.policy)
    if make is None:
        raise ValueError(f"no routing policy is called {config.policy!r}; there are {', '.join(sorted(POLICIES))}")
    return make(config)
