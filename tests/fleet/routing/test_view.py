"""The view of one cache against the plainest model of it: an ordered list of blocks."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Collection, Sequence

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
    """`order` is the model: blocks, the next to leave first. `queued` are the prompts that have not begun, each with
    what it still has and what it pushed out."""

    def __init__(self) -> None:
        super().__init__()
        self.view = CacheView(PrefixIndex(), 4, CAPACITY)
        self.order: list[bytes] = []
        self.queued: list[tuple[Ticket, list[bytes], set[bytes]]] = []

    def touch(self, blocks: list[bytes]) -> None:
        self.order = [block for block in self.order if block not in blocks] + blocks[::-1]

    def shrink(self) -> None:
        self.keep(self.order[max(len(self.order) - CAPACITY, 0) :])

    def keep(self, blocks: Collection[bytes]) -> None:
        self.order = [block for block in self.order if block in blocks]
        self.queued = [(ticket, [b for b in own if b in self.order], out) for ticket, own, out in self.queued]

    @property
    def waited_for(self) -> set[bytes]:
        return {block for _, own, _ in self.queued for block in own}

    @rule(path=paths)
    def dispatched(self, path: list[int]) -> None:
        blocks = prompt(path)[:CAPACITY]
        ousted: set[bytes] = set()
        self.queued.append((self.view.dispatched(blocks, 0.0), blocks, ousted))
        self.touch(blocks)
        before = set(self.order)
        self.shrink()
        ousted |= before - set(self.order)

    @rule()
    def begun(self) -> None:
        if self.queued:
            self.view.begun(self.queued.pop(0)[0])

    @rule(path=paths, every=st.integers(1, 3))
    def stored(self, path: list[int], every: int) -> None:
        """What the engine has beyond the dispatched, such as answers, was used before all that is queued."""
        blocks = prompt(path)[:CAPACITY:every]
        ousted = {block for _, _, out in self.queued for block in out}
        fresh = [block for block in blocks if block not in self.order and block not in ousted]
        self.view.stored(blocks, 0.0)
        if fresh:
            self.touch(fresh)
            for _, own, _ in self.queued:
                self.touch(own)
            self.shrink()

    @rule(path=paths, first=st.integers(0, 30), every=st.integers(1, 3))
    def removed(self, path: list[int], first: int, every: int) -> None:
        """Heads without their tails too: an engine should not, and the view stays right."""
        blocks = prompt(path)[first::every]
        before, protected = set(self.order), self.waited_for
        self.view.removed(blocks)
        gone = {block for block in before if block not in self.view}
        assert before - gone >= before - set(blocks)
        assert gone >= (before & set(blocks)) - protected
        self.keep(before - gone)

    @rule(path=paths)
    def snapshot(self, path: list[int]) -> None:
        before, kept = set(self.order), set(prompt(path))
        self.view.keep_only(kept)
        gone = {block for block in before if block not in self.view}
        assert before - kept - self.waited_for <= gone <= before - kept
        self.keep(before - gone)

    @invariant()
    def same(self) -> None:
        assert not self.view.check()
        assert len(self.view) == len(self.order)
        assert all(block in self.view for block in self.order)

    def teardown(self) -> None:
        """The queue empties, and nothing holds the view any more."""
        for ticket, _, _ in self.queued:
            self.view.begun(ticket)
        self.view.keep_only(set())
        assert len(self.view) == 0


TestTwin = Twin.TestCase
TestTwin.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_prompt_counts_from_its_dispatch_and_tails_leave_first() -> None:
    index = PrefixIndex()
    view = CacheView(index, 1, 8)
    first, second = prompt([0, 1]), prompt([2])
    view.dispatched(first, 0.0)
    assert index.depths(first, 1) == {0: 8}
    view.dispatched(second, 0.0)
    assert index.depths(first, 1) == {0: 4}
    assert index.depths(second, 1) == {0: 4}


def test_what_a_queued_prompt_brings_back_is_not_taken_away() -> None:
    view = CacheView(PrefixIndex(), 1, 100)
    blocks = prompt([0, 0])
    ticket = view.dispatched(blocks, 0.0)
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
        view.begun(view.dispatched(prompt(path), 0.0))
        assert len(view) <= CAPACITY
        assert len(index) <= CAPACITY
        assert not view.check()


def test_a_prompt_larger_than_the_cache_keeps_its_head() -> None:
    view = CacheView(PrefixIndex(), 1, 6)
    blocks = prompt([0, 1, 2])
    view.dispatched(blocks, 0.0)
    assert [block in view for block in blocks] == [True] * 6 + [False] * 6


def test_a_repeated_link_counts_once() -> None:
    view = CacheView(PrefixIndex(), 1, 6)
    view.dispatched([b"a", b"a", b"b"], 0.0)
    assert len(view) == 2
    assert not view.check()


def test_a_session_of_many_small_turns_stays_in_few_runs() -> None:
    view = CacheView(PrefixIndex(), 1, 1000)
    blocks = prompt([0] * 100)
    for end in range(1, 401):
        ticket = view.dispatched(blocks[:end], 0.0)
        assert len(ticket.runs) <= MOST_RUNS
        view.begun(ticket)
    assert not view.check()


class Engine:
    """Serves in order, one prompt at a time, from a cache that loses tails before heads; tells of each change."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.order = capacity, OrderedDict[bytes, None]()

    def serve(self, blocks: list[bytes], answer: list[bytes]) -> tuple[int, list[bytes], list[bytes]]:
        """Blocks that were cached, and what was stored and removed since the prompt before."""
        hit = next((at for at, block in enumerate(blocks) if block not in self.order), len(blocks))
        stored = [block for block in [*blocks, *answer] if block not in self.order]
        for block in reversed([*blocks, *answer]):
            self.order[block] = None
            self.order.move_to_end(block)
        removed = [self.order.popitem(last=False)[0] for _ in range(len(self.order) - self.capacity)]
        return hit, [block for block in stored if block in self.order], removed


@given(sent=st.lists(st.tuples(paths, st.integers(0, 3)), max_size=60), queue=st.integers(1, 6))
def test_a_view_foresees_what_a_queued_prompt_will_find(sent: list[tuple[list[int], int]], queue: int) -> None:
    """Up to `queue` prompts wait; events of the served ones come meanwhile, and change nothing that was foreseen."""
    index = PrefixIndex()
    view, engine = CacheView(index, 1, CAPACITY), Engine(CAPACITY)
    waiting: deque[tuple[list[bytes], Ticket, int]] = deque()

    def serve() -> None:
        blocks, ticket, expected = waiting.popleft()
        hit, stored, removed = engine.serve(blocks, [])
        assert hit == expected
        view.begun(ticket)
        view.removed(removed)
        view.stored(stored, 0.0)

    for path, served in sent:
        blocks = prompt(path)[:CAPACITY]
        expected = index.depths(blocks, 1).get(0, 0)
        waiting.append((blocks, view.dispatched(blocks, 0.0), expected))
        for _ in range(served if len(waiting) < queue else max(served, 1)):
            if waiting:
                serve()
    while waiting:
        serve()
    assert view._home.keys() == engine.order.keys()
