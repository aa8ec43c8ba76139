"""The view of one cache against the plainest model of it: an ordered list of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from stoker.fleet.routing.index import PrefixIndex
from stoker.fleet.routing.view import CacheView

CAPACITY = 24


def prompt(path: Sequence[int]) -> list[bytes]:
    """Four blocks for each choice on the way, named by all choices before: a tree of prompts that share heads."""
    return [bytes([*path[: at + 1], 255, part]) for at in range(len(path)) for part in range(4)]


paths = st.lists(st.integers(0, 2), min_size=1, max_size=8)


class Twin(RuleBasedStateMachine):
    """`order` is the model: blocks, the next to leave first."""

    def __init__(self) -> None:
        super().__init__()
        self.view = CacheView(PrefixIndex(), 4, CAPACITY)
        self.order: list[bytes] = []
        self.queued: dict[int, list[bytes]] = {}

    def touch(self, blocks: list[bytes]) -> None:
        self.order = [block for block in self.order if block not in blocks] + blocks[::-1]
        del self.order[: max(len(self.order) - CAPACITY, 0)]

    def protected(self) -> set[bytes]:
        """Of queued prompts, what no later prompt has taken over: a later one that is queued protects it anyway."""
        newest: dict[bytes, bool] = {}
        for blocks, waits in self.history:
            newest.update(dict.fromkeys(blocks, waits))
        return {block for block, waits in newest.items() if waits}

    @property
    def history(self) -> list[tuple[list[bytes], bool]]:
        return [(blocks, stamp in self.queued) for stamp, blocks in sorted(self.sent.items())]

    @property
    def sent(self) -> dict[int, list[bytes]]:
        return self.__dict__.setdefault("_sent", {})

    @rule(path=paths)
    def dispatched(self, path: list[int]) -> None:
        blocks = prompt(path)[:CAPACITY]
        stamp = self.view.dispatched(blocks)
        self.touch(blocks)
        self.queued[stamp] = self.sent[stamp] = blocks

    @rule(data=st.data())
    def begun(self, data: st.DataObject) -> None:
        if self.queued:
            stamp = data.draw(st.sampled_from(sorted(self.queued)))
            self.view.begun(stamp)
            del self.queued[stamp]

    @rule(path=paths)
    def stored(self, path: list[int]) -> None:
        """What the engine has beyond the dispatched, such as answers, is new and last used now."""
        fresh = [block for block in prompt(path)[:CAPACITY] if block not in self.order]
        self.view.stored(prompt(path)[:CAPACITY])
        if fresh:
            self.touch(fresh)
            self.sent[max(self.sent, default=0) + 1] = fresh  # takes the same stamp as in the view

    @rule(path=paths, kept=st.integers(0, 7))
    def removed(self, path: list[int], kept: int) -> None:
        blocks = prompt(path)[4 * kept :]
        self.view.removed(blocks)
        safe = self.protected()
        self.order = [block for block in self.order if block not in blocks or block in safe]

    @rule(path=paths)
    def snapshot(self, path: list[int]) -> None:
        self.view.keep_only(set(prompt(path)))
        safe = self.protected() | set(prompt(path))
        self.order = [block for block in self.order if block in safe]

    @rule()
    def cleared(self) -> None:
        self.view.clear()
        self.order.clear()
        self.queued.clear()

    @invariant()
    def same(self) -> None:
        assert not self.view.check()
        assert len(self.view) == len(self.order)
        assert all(block in self.view for block in self.order)


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
    stamp = view.dispatched(blocks)
    view.removed(blocks)
    assert len(view) == 8
    view.begun(stamp)
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
