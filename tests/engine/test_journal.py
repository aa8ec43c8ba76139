"""A mirror that is fed by snapshots and events equals what can be found in the pool, at every step it claims to."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_harness import Rig, ids

from stoker.engine.blocks import BlockPool
from stoker.engine.chain import LINK_BYTES, LOGICAL_BLOCK, Chain, ChainRoot
from stoker.engine.feed import Feed
from stoker.engine.journal import PART_BLOCKS, Journal
from stoker.types.wire import KVEvents, KVNews, KVSnapshot

ROOT = ChainRoot(fingerprint="m")


def links_of(ids: list[int], page: int, root: ChainRoot = ROOT, key: bytes = b"k") -> list[bytes]:
    chain = Chain(root, key, page)
    chain.extend(ids)
    return chain.links


def parts(joined: bytes) -> list[bytes]:
    return [joined[at : at + LINK_BYTES] for at in range(0, len(joined), LINK_BYTES)]


class Mirror:
    """What a reader makes of the messages that its feed lets through. `blocks` is None until a snapshot was whole."""

    def __init__(self) -> None:
        self.feed = Feed()
        self.feed.restart()
        self.blocks: set[bytes] | None = None
        self.coming: set[bytes] = set()

    def take(self, message: KVNews) -> None:
        if not self.feed.take(message):
            return
        if isinstance(message, KVSnapshot):
            self.coming = (set() if message.first else self.coming) | set(parts(message.blocks))
            self.blocks = None if message.more else self.coming
            return
        assert self.blocks is not None
        stored, removed = set(parts(message.stored)), set(parts(message.removed))
        assert not stored & self.blocks, "stored twice"
        assert removed <= self.blocks, "removed what was not there"
        assert not stored & removed
        self.blocks = (self.blocks - removed) | stored


def true_index(pool: BlockPool, prompts: list[list[bytes]]) -> set[bytes]:
    """Names of the logical blocks of `prompts` (links) of which every page is in the pool's index."""
    group = LOGICAL_BLOCK // pool.block_size
    return {
        links[end - 1]
        for links in prompts
        for end in range(group, len(links) + 1, group)
        if all(link in pool._index for link in links[end - group : end])
    }


class JournalMachine(RuleBasedStateMachine):
    """A pool under churn, with readers that come, go, lose messages and notice it by the heartbeat."""

    @initialize(num_blocks=st.integers(1, 14), page=st.sampled_from([16, 32, 64]))
    def build(self, num_blocks: int, page: int) -> None:
        self.pool = BlockPool(num_blocks, page)
        self.journal = Journal(self.pool)
        self.tables: list[list[int]] = []
        self.prompts: list[list[bytes]] = []
        self.mirror: Mirror | None = None

    @rule(pages=st.lists(st.integers(0, 1), min_size=1, max_size=9), publish=st.booleans())
    def run(self, pages: list[int], publish: bool) -> None:
        """A sequence of so many pages; a few kinds of pages, so that prompts share and part."""
        size = self.pool.block_size
        group = LOGICAL_BLOCK // size
        ids = [kind for kind in pages for _ in range(size)]
        links = links_of(ids, size)
        table = self.pool.match(links, ids)
        self.pool.acquire(table)
        fresh = self.pool.allocate(len(links) - len(table))
        if fresh is None:
            self.pool.release(table)
            return
        found, table = len(table), table + fresh
        self.tables.append(table)
        self.prompts.append(links)
        for page in range(found, len(links)) if publish else ():
            whole = (page + 1) % group == 0
            self.pool.publish(
                table[page],
                links[page],
                ids[page * size : (page + 1) * size],
                tuple(links[page + 1 - group : page + 1]) if whole else (),
            )

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.pool.release(self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1))))

    @precondition(lambda self: self.tables)
    @rule(data=st.data(), cut=st.integers(0, 8))
    def retract(self, data: st.DataObject, cut: int) -> None:
        """From the middle on, and also only the head: holes, which eviction makes too where pages are duplicates."""
        table = data.draw(st.sampled_from(self.tables))
        self.pool.retract(table[:cut] if data.draw(st.booleans()) else table[cut:])

    @rule(lost=st.booleans())
    def step(self, lost: bool) -> None:
        """The end of an engine's step; what is sent may get lost."""
        events = self.journal.drain()
        if self.mirror and events and not lost:
            self.mirror.take(events)

    @rule()
    def subscribe(self) -> None:
        self.step(lost=False)
        if self.mirror is None:
            self.mirror = Mirror()
        self.mirror.feed.restart()
        self.journal.start()
        for part in self.journal.snapshot():
            self.mirror.take(part)

    @precondition(lambda self: self.mirror)
    @rule()
    def leave(self) -> None:
        self.journal.stop()
        self.mirror = None

    @precondition(lambda self: self.mirror)
    @rule()
    def beat(self) -> None:
        self.step(lost=False)
        assert self.mirror
        if self.mirror.feed.behind(self.journal.seq):
            self.subscribe()
        self.same()

    @invariant()
    def whole(self) -> None:
        assert self.pool.check(self.tables) == []
        if not self.pool.watchers:
            assert not {*self.journal._pages, *self.journal._blocks, *self.journal._stored}
        else:
            assert self.journal._stored == true_index(self.pool, self.prompts)
            assert self.journal._pages.keys() <= self.pool._index.keys(), "what is kept is bounded by the pool"

    def same(self) -> None:
        assert self.mirror
        assert self.mirror.blocks == true_index(self.pool, self.prompts)


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=120, stateful_step_count=40, deadline=None)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 330), st.integers(0, 3), st.integers(0, 40)), min_size=1, max_size=14))
def test_the_real_scheduler_tells_all_that_it_publishes(requests: list[tuple[int, int, int]]) -> None:
    """Prompts with shared starts in a pool too small for them: at the end of every step the mirror is right."""
    rig = Rig(blocks=24, block_size=16, step_tokens=48)
    journal, mirror = Journal(rig.pool), Mirror()
    journal.start()
    for part in journal.snapshot():
        mirror.take(part)
    for number, (length, parted, wait) in enumerate(requests):
        rig.add(str(number), [*ids(length // 2), *ids(length - length // 2, seed=parted)], max_tokens=20)
        for _ in range(wait):
            rig.step()
            events = journal.drain()
            if events:
                mirror.take(events)
            known = [request.prompt_ids + rig.tokens[name] for name, request in rig.requests.items()]
            root = ChainRoot(fingerprint="model")
            prompts = [links_of(chain, 16, root, b"test key") for chain in known]
            assert mirror.blocks == true_index(rig.pool, prompts)


def test_a_block_that_several_prompts_part_in() -> None:
    """Its first pages belong to both; losing one of them removes both, and giving it back restores them."""
    pool = BlockPool(8, 16)
    journal = Journal(pool)
    journal.start()
    a, b = ([0] * 16 + [kind] * 48 for kind in (1, 2))
    tables: list[list[int]] = []
    names: list[bytes] = []
    for prompt in (a, b):
        links = links_of(prompt, 16)
        table = pool.match(links, prompt)
        pool.acquire(table)
        table += pool.allocate(4 - len(table)) or []
        for page in range(4):
            group = tuple(links) if page == 3 else ()
            pool.publish(table[page], links[page], prompt[page * 16 : page * 16 + 16], group)
        tables.append(table)
        names.append(links[3])
    assert tables[0][0] == tables[1][0]
    assert journal.drain() == KVEvents(seq=1, stored=b"".join(sorted(names, key=list(journal._stored).index)))
    pool.retract(tables[0][:1])
    events = journal.drain()
    assert events is not None
    assert (events.seq, set(parts(events.removed)), events.stored) == (2, set(names), b"")
    pool.publish(tables[0][0], links_of(a, 16)[0], [0] * 16)
    events = journal.drain()
    assert events is not None
    assert (events.seq, set(parts(events.stored)), events.removed) == (3, set(names), b"")


def test_what_comes_back_within_a_step_is_not_news() -> None:
    pool = BlockPool(4, 64)
    journal = Journal(pool)
    journal.start()
    (block,) = pool.allocate(1) or []
    link = links_of([1] * 64, 64)[0]
    pool.publish(block, link, [1] * 64, (link,))
    pool.retract([block])
    assert journal.drain() is None
    assert journal.seq == 0


def test_a_snapshot_comes_in_parts_of_bounded_size() -> None:
    count = 2 * PART_BLOCKS + 1
    pool = BlockPool(count, 64)
    for block in pool.allocate(count) or []:
        link = block.to_bytes(LINK_BYTES)
        pool.publish(block, link, [1] * 64, (link,))
    journal = Journal(pool)
    journal.start()
    told = journal.snapshot()
    assert [(part.first, part.more) for part in told] == [(True, True), (False, True), (False, False)]
    assert max(len(part.blocks) for part in told) == PART_BLOCKS * LINK_BYTES
    assert {name for part in told for name in parts(part.blocks)} == {n.to_bytes(LINK_BYTES) for n in range(count)}
    assert Journal(BlockPool(1, 16)).snapshot() == [KVSnapshot(seq=0, blocks=b"", first=True)]
