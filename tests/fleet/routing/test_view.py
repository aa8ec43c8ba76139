"""The view of one cache against the plainest model of it: an ordered list of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stoker.fleet.routing.index import PrefixIndex
from stoker.fleet.routing.view import MOST_RUNS, CacheView, Ticket

CAPACITY = 24


def prompt(path: Sequence[int]) -> list[bytes]:
    """Four blocks for each choice on the way, named by all choices before: a tree of prompts that share heads."""
    return [bytes([*path[: at + 1], 255, part]) for at in range(len(path)) for part in range(4)]


paths = st.lists(st.integers(0, 2), min_size=1, max_size=8)


class Twin(RuleBasedStateMachine):
    """`order` is the model: blocks, the next to leave first. `queued` are the prompts that have not begun."""

    def __init__(self) -> None:
        super().__init__()
        self.view = CacheView(PrefixIndex(), 4, CAPACITY)
        self.order: list[bytes] = []
        self.queued: list[tuple[Ticket, list[bytes]]] = []

    def touch(self, blocks: list[bytes]) -> None:
        self.order = [block for block in self.order if block not in blocks] + blocks[::-1]
        del self.order[: max(len(self.order) - CAPACITY, 0)]

    @property
    def waited_for(self) -> set[bytes]:
        return {block for _, blocks in self.queued for block in blocks}

    @rule(path=paths)
    def dispatched(self, path: list[int]) -> None:
        blocks = prompt(path)[:CAPACITY]
        self.queued.append((self.view.dispatched(blocks), blocks))
        self.touch(blocks)

    @rule(data=st.data())
    def begun(self, data: st.DataObject) -> None:
        if self.queued:
            ticket, _ = self.queued.pop(data.draw(st.integers(0, len(self.queued) - 1)))
            self.view.begun(ticket)

    @rule(path=paths, every=st.integers(1, 3))
    def stored(self, path: list[int], every: int) -> None:
        """What the engine has beyond the dispatched, such as answers, is new and last used now."""
        blocks = prompt(path)[:CAPACITY:every]
        fresh = [block for block in blocks if block not in self.order]
        self.view.stored(blocks)
        self.touch(fresh)

    @rule(path=paths, first=st.integers(0, 30), every=st.integers(1, 3))
    def removed(self, path: list[int], first: int, every: int) -> None:
        """Heads without their tails too: an engine should not, and the view stays right."""
        blocks = prompt(path)[first::every]
        before, protected = set(self.order), self.waited_for
        self.view.removed(blocks)
        gone = {block for block in before if block not in self.view}
        assert before - gone >= before - set(blocks)
        assert gone >= (before & set(blocks)) - protected
        self.order = [block for block in self.order if block not in gone]

    @rule(path=paths)
    def snapshot(self, path: list[int]) -> None:
        before, kept = set(self.order), set(prompt(path))
        self.view.keep_only(kept)
        gone = {block for block in before if block not in self.view}
        assert before - kept - self.waited_for <= gone <= before - kept
        self.order = [block for block in self.order if block not in gone]

    @invariant()
    def same(self) -> None:
        assert not self.view.check()
        assert len(self.view) == len(self.order)
        assert all(block in self.view for block in self.order)

    def teardown(self) -> None:
        """The queue empties, and nothing holds the view any more."""
        for ticket, _ in self.queued:
            self.view.begun(ticket)
        self.view.keep_only(set())
        assert len(self.view) == 0


TestTwin = Twin.TestCase
TestTwin.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_prompt_counts_from_its_dispatch_and_tails_leave_first() -> None:
    index = PrefixIndex()
    view = CacheView(index, 1, 8)
    first, second = prompt([0, 1]), prompt([2])
    view.dispatched(first)
    assert index.depths(first, 1) == {0: 8}
    view.dispatched(second)
    assert index.depths(first, 1) == {0: 4}
    assert index.depths(second, 1) == {0: 4}


def test_what_a_queued_prompt_brings_back_is_not_taken_away() -> None:
    view = CacheView(PrefixIndex(), 1, 100)
    blocks = prompt([0, 0])
    ticket = view.dispatched(blocks)
    view.removed(blocks)
    assert len(view) == 8
    view.begun(ticket)
    view.removed(blocks)
    assert len(view) == 0


@given(st.lists(paths, max_size=200))
def test_memory_is_bounded_by_capacity(sent: list[list[int]]) -> None:
    """Whatever is sent: blocks, index and the lists of runs stay within small multiples of the capacity."""
    index = PrefixIndex()
    view = CacheView(index, 1, CAPACITY)
    for path in sent:
        view.begun(view.dispatched(prompt(path)))
        assert len(view) <= CAPACITY
        assert len(index) <= CAPACITY
        assert not view.check()


def test_a_prompt_larger_than_the_cache_keeps_its_head() -> None:
    view = CacheView(PrefixIndex(), 1, 6)
    blocks = prompt([0, 1, 2])
    view.dispatched(blocks)
    assert [block in view for block in blocks] == [True] * 6 + [False] * 6


def test_a_repeated_link_counts_once() -> None:
    view = CacheView(PrefixIndex(), 1, 6)
    view.dispatched([b"a", b"a", b"b"])
    assert len(view) == 2
    assert not view.check()


def test_a_session_of_many_small_turns_stays_in_few_runs() -> None:
    view = CacheView(PrefixIndex(), 1, 1000)
    blocks = prompt([0] * 100)
    for end in range(1, 401):
        ticket = view.dispatched(blocks[:end])
        assert len(ticket.runs) <= MOST_RUNS
        view.begun(ticket)
    assert not view.check()
