"""When an engine hangs, and when only this process slept."""

from __future__ import annotations

import msgspec

from stoker.fleet.silence import HUNG_SECONDS, HUNG_STEPS, TICK_SECONDS, Silence, limit
from stoker.types.wire import EngineStats

STATS = EngineStats(
    steps=10,
    running=0,
    waiting=0,
    blocks_free=0,
    blocks_cached=0,
    blocks_in_use=0,
    wasted_slots=0,
    step_seconds=0.1,
    prefill_tokens=0,
    decode_tokens=0,
    cached_tokens=0,
    preemptions=0,
    recomputed_tokens=0,
    evictions=0,
)


def silent_for(stats: EngineStats | None, seconds: float) -> float | None:
    silence, now, found = Silence(), 0.0, None
    while now <= seconds:
        found = silence.tick(now, now, stats)
        now += TICK_SECONDS
    return found


def test_five_seconds_are_too_long() -> None:
    assert silent_for(STATS, HUNG_SECONDS - TICK_SECONDS) is None
    assert silent_for(STATS, HUNG_SECONDS + 2 * TICK_SECONDS) is not None


def test_a_long_step_that_was_announced_is_waited_for() -> None:
    long = msgspec.structs.replace(STATS, predicted=10.0)
    assert limit(long) == HUNG_STEPS * 10.0
    assert silent_for(long, 39.0) is None
    assert silent_for(long, 42.0) is not None


def test_heartbeats_keep_it_alive() -> None:
    silence = Silence()
    for beat in range(100):
        assert silence.tick(beat * TICK_SECONDS, 0.3, STATS) is None


def test_a_host_that_slept_ends_no_engine() -> None:
    """After a night in a bag the heartbeats lie unread: the engine gets its time from now on."""
    silence = Silence()
    silence.tick(0.0, 0.1, STATS)
    assert silence.tick(30_000.0, 30_000.2, STATS) is None
    assert silence.tick(30_000.5, 0.1, STATS) is None


def test_a_night_counts_as_little_and_then_the_clock_runs() -> None:
    silence, now = Silence(), 0.0
    silence.tick(now, 0.1, STATS)
    for _ in range(round(HUNG_SECONDS / TICK_SECONDS)):
        now += 1000.0
        found = silence.tick(now, now + 1.0, STATS)
    assert found is not None
