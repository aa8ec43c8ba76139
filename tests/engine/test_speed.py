from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.speed import UNKNOWN_SECONDS, Speed


def test_before_the_first_measurement_a_step_may_take_long() -> None:
    speed = Speed()
    assert (speed.prefill_rate, speed.decode_seconds) == (0.0, 0.0)
    assert speed.predict(100, 0) == speed.predict(0, 5) == UNKNOWN_SECONDS
    assert speed.predict(100, 5) == 2 * UNKNOWN_SECONDS
    assert speed.predict(0, 0) == 0.0
    speed.measured(100, 0, 0.0)  # a clock that did not move says nothing
    assert speed.predict(100, 0) == UNKNOWN_SECONDS


def test_both_costs_are_found_from_mixed_steps() -> None:
    """1,000 tokens a second and 0.05 s a decode; steps of all kinds, in any order."""
    speed = Speed()
    for prefill, decode in [(0, 1), (512, 0), (0, 8), (256, 8), (64, 2), (0, 64), (1000, 64)]:
        speed.measured(prefill, decode, prefill / 1000 + (0.05 if decode else 0.0))
    assert speed.decode_seconds == pytest.approx(0.05)
    assert speed.prefill_rate == pytest.approx(1000)
    assert speed.predict(500, 3) == pytest.approx(0.55)


def test_it_follows_a_change_within_some_steps() -> None:
    speed = Speed()
    for _ in range(50):
        speed.measured(100, 0, 0.1)
    for _ in range(30):
        speed.measured(100, 0, 1.0)
    assert speed.prefill_rate == pytest.approx(100, rel=0.5)


def test_tiny_chunks_hardly_count() -> None:
    speed = Speed()
    speed.measured(10_000, 0, 10.0)
    speed.measured(1, 0, 0.05)
    assert speed.prefill_rate == pytest.approx(1000, rel=0.02)


@given(st.lists(st.tuples(st.integers(0, 999), st.integers(0, 99), st.floats(0, 100)), max_size=30))
def test_nothing_is_ever_negative_or_infinite(steps: list[tuple[int, int, float]]) -> None:
    speed = Speed()
    for prefill, decode, seconds in steps:
        if prefill or decode:
            speed.measured(prefill, decode, seconds)
        assert 0 <= speed.prefill_rate < float("inf")
        assert 0 <= speed.predict(prefill, decode) < float("inf")


def test_a_step_with_images_may_take_long_and_teaches_nothing() -> None:
    speed = Speed()
    speed.measured(1000, 0, 1.0)
    speed.measured(10, 1, 50.0, images=True)
    assert (speed.prefill_rate, speed.decode_seconds) == (pytest.approx(1000), 0.0)
    assert speed.predict(1000, 0, images=True) == pytest.approx(UNKNOWN_SECONDS + 1)
