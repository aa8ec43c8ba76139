"""Who is blamed for the death of an engine."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from stoker.fleet.suspects import CLEARED_TOKENS, MOST_DEATHS, Suspect, died


def test_alone_on_two_engines_is_guilty() -> None:
    one = Suspect()
    died([one])
    assert not one.guilty
    died([one])
    assert one.guilty


def test_the_only_one_who_saw_both_is_guilty() -> None:
    one, *others = [Suspect() for _ in range(5)]
    died([one, *others])
    fresh = [Suspect() for _ in range(3)]
    died([one, *fresh])
    assert one.guilty
    assert not any(suspect.guilty for suspect in (*others, *fresh))


def test_several_who_saw_the_same_two_start_alone() -> None:
    one, two = Suspect(), Suspect()
    died([one, two])
    died([one, two])
    assert (one.guilty, two.guilty) == (False, False)
    assert (one.deaths, two.deaths) == (2, 2)
    one.alone = True
    one.progressed(1)
    assert (one.alone, one.deaths) == (False, 1), "it started well"
    two.alone = True
    died([one, two])
    assert (one.guilty, two.guilty) == (False, True)
    assert one.deaths == 1, "the other was to blame"


def test_who_gets_on_is_free_again() -> None:
    one = Suspect()
    one.progressed(10)
    died([one])
    one.progressed(10 + CLEARED_TOKENS - 1)
    assert one.deaths == 1
    one.progressed(10 + CLEARED_TOKENS)
    died([one])
    assert not one.guilty


def test_nothing_is_tried_for_ever() -> None:
    one = Suspect()
    for death in range(MOST_DEATHS):
        assert not one.guilty
        one.progressed((death + 1) * 1000)
        died([one])
    assert one.guilty


@given(st.integers(0, 10_000), st.integers(2, 12), st.integers(2, 4))
def test_a_poisonous_request_is_found_and_no_other_is_refused(seed: int, count: int, engines: int) -> None:
    """Requests on some engines, one of which kills at its first step: it is refused, everybody else lives."""
    draw = random.Random(seed)
    waiting = [Suspect() for _ in range(count)]
    poison = waiting[draw.randrange(count)]
    running: list[list[Suspect]] = [[] for _ in range(engines)]
    deaths = 0
    while not poison.guilty:
        draw.shuffle(waiting)
        for suspect in list(waiting):
            waiting.remove(suspect)
            engine = draw.randrange(engines)
            suspect.alone = suspect.deaths > 1
            running[engine].append(suspect)
            if suspect is poison:
                deaths += 1
                died(running[engine])
                assert not any(other.guilty for other in running[engine] if other is not poison)
                for other in running[engine]:
                    other.alone = False
                waiting += [other for other in running[engine] if not other.guilty]
                running[engine] = []
            else:
                suspect.progressed(1)
    assert deaths <= 3
