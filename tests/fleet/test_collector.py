"""Every figure of an engine reaches Prometheus, under its replica, and is gone with the engine."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from stoker.fleet.backend import ReplicaStatus, RoutingFigures
from stoker.fleet.collector import COUNTERS, GAUGES, STATES, WORDS, FleetCollector
from stoker.types.wire import EngineStats

BY_HAND = {
    "waiting",
    "waiting_by_lane",
    "kv_seq",
    *(f"{kind}_{state}" for kind in ("blocks", "states") for state in STATES),
}


class Fleet:
    def __init__(self, **replicas: ReplicaStatus) -> None:
        self.all = replicas

    def routing(self) -> RoutingFigures:
        return RoutingFigures(
            decisions={"load": 4, "prefix": 5},
            index={"a": "exact", "b": "degraded"},
            gaps={"a": 0, "b": 6},
            sessions=7,
            blocks=8,
            replays=9,
            repeated_tokens=10,
        )

    def replicas(self) -> dict[str, ReplicaStatus]:
        return self.all


def stats() -> EngineStats:
    """Every figure is another number."""
    fields: dict[str, Any] = {name: place for place, name in enumerate(EngineStats.__struct_fields__, start=10)}
    return msgspec.convert(fields | {"type": "stats", "waiting_by_lane": (1, 2, 3)}, EngineStats)


def samples(fleet: Fleet) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(FleetCollector(lambda: [("m", fleet)]))  # pyright: ignore[reportArgumentType]
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_every_figure_of_an_engine_is_told() -> None:
    assert GAUGES.keys() | COUNTERS.keys() | BY_HAND == set(EngineStats.__struct_fields__)
    engine = stats()
    found = samples(Fleet(a=ReplicaStatus(status="ready", heartbeat_age=0.5, in_flight=3, restarts=2, engine=engine)))
    for field, (name, _) in GAUGES.items():
        assert found[name, "m", "a"] == getattr(engine, field)
    for field, (name, _) in COUNTERS.items():
        assert found[f"{name}_total", "m", "a"] == getattr(engine, field)
    for state in STATES:
        assert found["stoker_engine_kv_blocks", "m", "a", state] == getattr(engine, f"blocks_{state}")
        assert found["stoker_engine_state_slots", "m", "a", state] == getattr(engine, f"states_{state}")
    lanes = [found["stoker_engine_waiting_requests", "m", "a", lane] for lane in ("interactive", "standard", "batch")]
    assert lanes == [1, 2, 3]
    assert found["stoker_engine_heartbeat_age_seconds", "m", "a"] == 0.5
    assert found["stoker_replica_requests_in_flight", "m", "a"] == 3
    assert found["stoker_replica_restarts_total", "m", "a"] == 2


def test_a_replica_without_an_engine_has_a_status_and_no_figures() -> None:
    found = samples(Fleet(a=ReplicaStatus(status="down", restarts=7), b=ReplicaStatus(status="ready", engine=stats())))
    assert {word: found["stoker_replica_status", "m", "a", word] for word in WORDS} == {
        word: float(word == "down") for word in WORDS
    }
    assert found["stoker_replica_restarts_total", "m", "a"] == 7
    assert not [series for series in found if series[0].startswith("stoker_engine") and series[2] == "a"]
    assert ("stoker_engine_running_requests", "m", "b") in found


def test_what_the_router_does_is_told() -> None:
    found = samples(Fleet())
    assert found["stoker_router_decisions_total", "m", "prefix"] == 5
    states = {state: found["stoker_router_index_state", "m", "b", state] for state in ("exact", "degraded", "absent")}
    assert states == {"exact": 0, "degraded": 1, "absent": 0}
    assert found["stoker_router_index_gaps_total", "m", "b"] == 6
    assert found["stoker_router_sessions", "m"] == 7
    assert found["stoker_router_index_blocks", "m"] == 8
    assert found["stoker_replays_total", "m"] == 9
    assert found["stoker_replay_repeated_tokens_total", "m"] == 10
