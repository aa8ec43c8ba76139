"""Engines and replicas for Prometheus, read at the moment somebody asks. docs/metrics.md lists every name.

Owns no figure: they are the engines' own, from their newest heartbeat, and the pool's. An engine's counters begin again
with each of its lives, as Prometheus expects of counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from stoker.fleet.backend import Backend, ReplicaStatus, RoutingFigures
from stoker.fleet.router import IndexState
from stoker.types.lane import Lane
from stoker.types.wire import EngineStats

Family = GaugeMetricFamily | CounterMetricFamily

# field of EngineStats -> name and help
GAUGES = {
    "running": ("stoker_engine_running_requests", "Sequences that hold a slot."),
    "wasted_slots": ("stoker_engine_wasted_slots", "KV slots inside blocks in use that hold no token."),
    "step_seconds": ("stoker_engine_last_step_seconds", "Duration of the last step."),
    "kv_tokens": ("stoker_engine_kv_capacity_tokens", "Tokens that the KV pool can hold."),
    "queued_tokens": ("stoker_engine_queued_tokens", "Prompt tokens that are still to be computed."),
    "prefill_rate": ("stoker_engine_prefill_tokens_per_second", "Measured over recent steps; 0 before the first."),
    "decode_seconds": ("stoker_engine_decode_step_seconds", "Of recent steps that only decode; 0 before the first."),
    "predicted": ("stoker_engine_predicted_step_seconds", "What the step that is being made was predicted to take."),
}
COUNTERS = {
    "steps": ("stoker_engine_steps", "Steps made."),
    "prefill_tokens": ("stoker_engine_prefill_tokens", "Tokens computed in prefill."),
    "decode_tokens": ("stoker_engine_decode_tokens", "Tokens computed in decode."),
    "cached_tokens": ("stoker_engine_cached_tokens", "Prompt tokens found in the prefix cache."),
    "recomputed_tokens": ("stoker_engine_recomputed_tokens", "Tokens computed a second time, after a preemption."),
    "after_abort": ("stoker_engine_tokens_after_abort", "Tokens computed while an abort was on its way, at most."),
    "image_tokens": ("stoker_engine_image_tokens", "Tokens of images that the vision part has encoded."),
    "preemptions": ("stoker_engine_preemptions", "Sequences put back in line for others."),
    "evictions": ("stoker_engine_evictions", "Cached blocks given to others."),
    "failed_checks": ("stoker_engine_failed_checks", "Checks of the block pool that found a fault."),
}
WORDS = ("ready", "starting", "draining", "drained", "down")
STATES = ("free", "cached", "in_use")


class FleetCollector(Collector):
    """`models` gives each model's name and its backend."""

    def __init__(self, models: Callable[[], Iterable[tuple[str, Backend]]]) -> None:
        self._models = models

    def describe(self) -> Iterator[Family]:
        """All families, empty: whatever is served, their names are these."""
        return iter([*_engines([]), *_routing([])])

    def collect(self) -> Iterator[Family]:
        models = list(self._models())
        replicas = [((model, name), status) for model, backend in models for name, status in backend.replicas().items()]
        return iter([*_engines(replicas), *_routing([(model, backend.routing()) for model, backend in models])])


def _routing(models: list[tuple[str, RoutingFigures]]) -> list[Family]:
    decisions = CounterMetricFamily(
        "stoker_router_decisions", "Requests sent to replicas, by why that one.", labels=("model", "reason")
    )
    index = GaugeMetricFamily(
        "stoker_router_index_state",
        "1 for how well the replica's cache is known.",
        labels=("model", "replica", "state"),
    )
    gaps = CounterMetricFamily(
        "stoker_router_index_gaps", "Times that events of the replica's cache were missed.", labels=("model", "replica")
    )
    sessions = GaugeMetricFamily(
        "stoker_router_sessions", "Sessions whose last replica is remembered.", labels=("model",)
    )
    blocks = GaugeMetricFamily("stoker_router_index_blocks", "Logical blocks in the index.", labels=("model",))
    replays = CounterMetricFamily(
        "stoker_replays", "Times that a request lost its engine and went on elsewhere.", labels=("model",)
    )
    repeated = CounterMetricFamily(
        "stoker_replay_repeated_tokens", "Tokens computed again for those.", labels=("model",)
    )
    for model, figures in models:
        for reason, count in figures.decisions.items():
            decisions.add_metric((model, reason), count)
        for replica, state in figures.index.items():
            for each in IndexState:
                index.add_metric((model, replica, each.value), float(state == each.value))
        for replica, count in figures.gaps.items():
            gaps.add_metric((model, replica), count)
        sessions.add_metric((model,), figures.sessions)
        blocks.add_metric((model,), figures.blocks)
        replays.add_metric((model,), figures.replays)
        repeated.add_metric((model,), figures.repeated_tokens)
    return [decisions, index, gaps, sessions, blocks, replays, repeated]


def _engines(replicas: list[tuple[tuple[str, str], ReplicaStatus]]) -> list[Family]:
    labels = ("model", "replica")
    status = GaugeMetricFamily("stoker_replica_status", "1 for what the replica is.", labels=(*labels, "status"))
    flight = GaugeMetricFamily("stoker_replica_requests_in_flight", "Requests that it works on.", labels=labels)
    restarts = CounterMetricFamily("stoker_replica_restarts", "Engines started anew after one died.", labels=labels)
    age = GaugeMetricFamily(
        "stoker_engine_heartbeat_age_seconds", "Since the engine's loop last showed that it moves.", labels=labels
    )
    waiting = GaugeMetricFamily("stoker_engine_waiting_requests", "In line, by lane.", labels=(*labels, "lane"))
    blocks = GaugeMetricFamily("stoker_engine_kv_blocks", "Blocks of the KV pool.", labels=(*labels, "state"))
    slots = GaugeMetricFamily(
        "stoker_engine_state_slots", "Slots for states of recurrent layers.", labels=(*labels, "state")
    )
    gauges = {field: GaugeMetricFamily(name, text, labels=labels) for field, (name, text) in GAUGES.items()}
    counters = {field: CounterMetricFamily(name, text, labels=labels) for field, (name, text) in COUNTERS.items()}
    for who, replica in replicas:
        for word in WORDS:
            status.add_metric((*who, word), float(replica.status == word))
        flight.add_metric(who, replica.in_flight)
        restarts.add_metric(who, replica.restarts)
        if replica.heartbeat_age is not None:
            age.add_metric(who, replica.heartbeat_age)
        engine = replica.engine
        if engine is None:
            continue
        for lane, count in zip(Lane, engine.waiting_by_lane, strict=True):
            waiting.add_metric((*who, lane.name.lower()), count)
        for state in STATES:
            blocks.add_metric((*who, state), _figure(engine, f"blocks_{state}"))
            slots.add_metric((*who, state), _figure(engine, f"states_{state}"))
        for field, family in (*gauges.items(), *counters.items()):
            family.add_metric(who, _figure(engine, field))
    return [status, flight, restarts, age, waiting, blocks, slots, *gauges.values(), *counters.values()]


def _figure(engine: EngineStats, field: str) -> float:
    return float(getattr(engine, field))
