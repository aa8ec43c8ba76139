"""How far a session's new prompt follows an earlier one, and that what is remembered of sessions is bounded."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from stoker.service.divergence import Divergence, Divergences

IDS = st.lists(st.integers(0, 3), max_size=40)


def words(start: int, count: int) -> list[int]:
    return [(start * 7919 + place * 104729) % 163840 for place in range(count)]


def test_the_first_prompt_has_nothing_to_be_compared_with() -> None:
    watch = Divergences()
    assert watch.observe("t", "s", [1, 2, 3]) is None
    assert watch.observe("t", "other", [1, 2, 3]) is None
    assert watch.observe("other", "s", [1, 2, 3]) is None


def test_a_prompt_that_goes_on_shares_all_and_loses_nothing() -> None:
    watch = Divergences()
    prompt = words(1, 500)
    watch.observe("t", "s", prompt)
    for turn in range(2, 6):
        before = len(prompt)
        prompt = prompt + words(turn, 100)
        found = watch.observe("t", "s", prompt)
        assert found == Divergence(shared=before, of=before, resent=True)
        assert found.lost == 0


def test_a_clock_early_in_the_prompt_is_told_with_its_place() -> None:
    watch = Divergences()
    head, rest = words(1, 20), words(2, 3000)
    watch.observe("t", "s", [*head, 111, *rest])
    found = watch.observe("t", "s", [*head, 222, *rest, *words(3, 50)])
    assert found == Divergence(shared=20, of=3021, resent=True)
    assert found.lost == 3001
    longer = watch.observe("t", "s", [*head, 5, 6, 7, *rest, *words(3, 50), *words(4, 50)])
    assert longer is not None
    assert (longer.shared, longer.resent) == (20, True), "also where it grew and everything moved"


def test_another_opening_of_the_answer_is_still_the_same_conversation() -> None:
    watch = Divergences()
    prompt = words(1, 500)
    watch.observe("t", "s", [*prompt, 11, 12])
    assert watch.observe("t", "s", [*prompt, 12, *words(2, 50)]) == Divergence(shared=500, of=502, resent=True)


def test_another_thread_of_the_session_is_not_taken_for_a_loss() -> None:
    watch = Divergences()
    main, title = words(1, 1000), words(2, 200)
    watch.observe("t", "s", main)
    other = watch.observe("t", "s", title)
    assert other == Divergence(shared=0, of=1000, resent=False)
    assert other.lost == 0
    found = watch.observe("t", "s", main + words(3, 10))
    assert found == Divergence(shared=1000, of=1000, resent=True)
    again = watch.observe("t", "s", title + words(4, 10))
    assert again == Divergence(shared=200, of=200, resent=True)


def test_the_number_of_prompts_and_sessions_and_their_tokens_are_bounded() -> None:
    watch = Divergences(sessions=3, prompts=2, tokens=1000)
    for session in range(10):
        for thread in range(5):
            watch.observe("t", str(session), words(100 * session + thread, 100))
    assert watch._held == sum(len(prompt) for prompts in watch._sessions.values() for prompt in prompts)
    assert list(watch._sessions) == [("t", "7"), ("t", "8"), ("t", "9")]
    assert all(len(prompts) == 2 for prompts in watch._sessions.values())
    watch.observe("t", "big", words(5, 900))
    assert watch._held <= 4 * 1000
    assert watch.observe("t", "big", words(5, 901)) == Divergence(shared=900, of=900, resent=True)
    assert watch.observe("t", "huge", words(6, 1001)) is None
    assert watch.observe("t", "huge", words(6, 1001)) is None, "longer than all there is room for"
    assert watch._held == sum(len(prompt) for prompts in watch._sessions.values() for prompt in prompts)


@given(IDS, IDS)
def test_the_shared_start_is_the_common_prefix(old: list[int], new: list[int]) -> None:
    watch = Divergences()
    watch.observe("t", "s", old)
    found = watch.observe("t", "s", new)
    common = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    assert found is not None
    assert (found.shared, found.of) == (common, len(old))


def test_several_threads_may_observe() -> None:
    watch = Divergences(sessions=5, prompts=2, tokens=5000)

    def run(seed: int) -> None:
        for turn in range(50):
            watch.observe("t", str((seed + turn) % 7), words(seed, 10 + turn))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watch._held == sum(len(prompt) for prompts in watch._sessions.values() for prompt in prompts)
