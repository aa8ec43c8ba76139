"""A replica's load: how long a new request would wait, and how fast the replica is."""

from __future__ import annotations

import pytest

from stoker.fleet.routing.load import HOLD_SECONDS, Flight, Load
from stoker.fleet.routing.view import Ticket
from stoker.types.lane import Lane

RATE = 1000.0


def flight(uncached: int, now: float, lane: Lane = Lane.STANDARD, tokens: int | None = None) -> Flight:
    return Flight(tokens=tokens or uncached, uncached=uncached, lane=lane, ticket=Ticket(), sent=now)


def wait(load: Load, now: float, lane: Lane = Lane.STANDARD) -> float:
    return load.wait(lane, now, load.rate)


def test_the_wait_is_what_is_ahead_less_what_was_done() -> None:
    load = Load(slots=8, rate=RATE, step=0.01)
    load.sent("a", flight(4000, 0.0))
    load.sent("b", flight(2000, 1.0))
    assert wait(load, 1.0) == pytest.approx(5.0)
    assert load.begun("a", 0, 4.0) is not None
    assert wait(load, 4.5) == pytest.approx(1.5)
    load.begun("b", 0, 6.0)
    assert wait(load, 6.0) == 0.0


def test_what_was_done_for_a_long_prompt_is_not_forgotten_when_a_short_one_overtakes() -> None:
    load = Load(slots=8, rate=RATE, step=0.01)
    load.sent("long", flight(9000, 0.0))
    load.sent("short", flight(1000, 0.0))
    load.begun("short", 0, 4.0)
    assert wait(load, 4.0) == pytest.approx(6.0)


def test_a_lower_lane_does_not_delay_a_higher_one() -> None:
    load = Load(slots=8, rate=RATE, step=0.01)
    load.sent("batch", flight(9000, 0.0, Lane.BATCH))
    load.sent("chat", flight(1000, 0.0, Lane.INTERACTIVE))
    assert wait(load, 0.0, Lane.INTERACTIVE) == pytest.approx(1.0)
    assert wait(load, 0.0, Lane.STANDARD) == pytest.approx(1.0)
    assert wait(load, 0.0, Lane.BATCH) == pytest.approx(10.0)


def test_where_all_slots_are_taken_the_wait_is_for_one() -> None:
    load = Load(slots=2, rate=RATE, step=0.01)
    for name in "abc":
        load.sent(name, flight(10, 0.0))
        load.begun(name, 0, 0.01)
    assert wait(load, 0.01) == pytest.approx(2 * HOLD_SECONDS / 2)


def test_the_rate_is_measured_where_a_request_was_alone() -> None:
    load = Load(slots=8, rate=0.0, step=0.01)
    load.sent("a", flight(4000, 0.0))
    load.begun("a", 2000, 1.0)
    assert load.rate == pytest.approx(2000.0)  # 2000 of them were cached
    load.sent("b", flight(4000, 2.0))
    load.sent("c", flight(4000, 2.0))
    load.begun("b", 0, 9.0)
    load.begun("c", 0, 16.0)
    assert load.rate == pytest.approx(2000.0)


@pytest.mark.parametrize("told", ["before", "while", "after"])
def test_an_abort_is_counted_once_whenever_it_comes(told: str) -> None:
    load = Load(slots=8, rate=RATE, step=0.01)
    assert load.finished("a", 0.0) is None
    load.sent("a", flight(100, 0.0))
    if told != "before":
        load.begun("a", 0, 0.1)
        load.progressed("a", 5)
    assert load.finished("a", 1.0) is not None
    for _ in range(2):
        assert load.finished("a", 2.0) is None
        assert load.begun("a", 0, 2.0) is None
        load.progressed("a", 5)
    assert (load.started, load.ended, load.tokens, load.output, load.queued_tokens) == (1, 1, 0, 0, 0)
