"""The pool against a reference that is too simple to be wrong: it searches instead of keeping books."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stoker.engine.blocks import BlockPool
from stoker.engine.chain import Chain, ChainRoot

ROOT = ChainRoot(fingerprint="m")


def links_of(ids: list[int], page: int) -> list[bytes]:
    chain = Chain(ROOT, b"k", page)
    chain.extend(ids)
    return chain.links


class PoolMachine(RuleBasedStateMachine):
    """`tables`: what sequences hold; `content`: of what prefix a block is findable; `used`: when it was let go."""

    @initialize(num_blocks=st.integers(1, 9), page=st.integers(1, 3))
    def build(self, num_blocks: int, page: int) -> None:
        self.pool = BlockPool(num_blocks, page)
        self.page = page
        self.tables: list[list[int]] = []
        self.ids: list[list[int]] = []
        self.pins: list[int] = []
        self.content: dict[int, tuple[int, ...]] = {}
        self.used: dict[int, int] = {}
        self.clock = 0
        self.evicted = 0
        self.known: set[tuple[int, ...]] = set()
        self.forgotten: list[bytes] = []
        self.pool.watchers.append(self)

    def published(self, link: bytes, group: tuple[bytes, ...]) -> None:
        """As a `Watcher`."""

    def withdrawn(self, link: bytes) -> None:
        self.forgotten.append(link)

    def held(self) -> set[int]:
        return {block for table in self.tables for block in table} | set(self.pins)

    def let_go(self, blocks: list[int]) -> None:
        """Reference of LRU: of one table the tail counts as let go before the head."""
        held = self.held()
        for block in reversed(blocks):
            if block not in held:
                self.clock += 1
                self.used[block] = self.clock

    @rule(ids=st.lists(st.integers(0, 1), min_size=1, max_size=12), publish=st.booleans())
    def run(self, ids: list[int], publish: bool) -> None:
        """What a sequence does: match, acquire, allocate the rest, publish what is full."""
        links = links_of(ids, self.page)
        matched = self.pool.match(links, ids)
        known = {prefix: block for block, prefix in self.content.items()}
        expected: list[int] = []
        for end in range(self.page, len(ids) + 1, self.page):
            if tuple(ids[:end]) not in known:
                break
            expected.append(known[tuple(ids[:end])])
        assert matched == expected
        self.pool.acquire(matched)
        self.tables.append(matched)
        self.ids.append(ids)
        need = -(-len(ids) // self.page) - len(matched)
        held = self.held()
        idle = [block for block in range(self.pool.num_blocks) if block not in held]
        fresh = self.pool.allocate(need)
        if need > len(idle):
            assert fresh is None
            self.tables.pop()
            self.ids.pop()
            self.pool.release(matched)
            self.let_go(matched)
            return
        assert fresh is not None
        assert len(set(fresh)) == need
        assert set(fresh) <= set(idle)
        cached = sorted((block for block in idle if block in self.content), key=lambda block: self.used[block])
        evicted = cached[: max(0, need - (len(idle) - len(cached)))]
        assert {block for block in fresh if block in self.content} == set(evicted), "the least recently used go first"
        self.evicted += len(evicted)
        for block in evicted:
            del self.content[block]
        self.tables[-1] = matched + fresh
        if publish:
            for page in range(len(matched), len(ids) // self.page):
                block, prefix = self.tables[-1][page], tuple(ids[: (page + 1) * self.page])
                new = self.pool.publish(block, links[page], ids[page * self.page : (page + 1) * self.page])
                assert new == (prefix not in self.content.values())
                if new:
                    self.content[block] = prefix

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        table = self.tables.pop(data.draw(st.integers(0, len(self.tables) - 1)))
        self.pool.release(table)
        self.let_go(table)

    @precondition(lambda self: self.tables)
    @rule(data=st.data())
    def retract(self, data: st.DataObject) -> None:
        table = data.draw(st.sampled_from(self.tables))
        self.pool.retract(table)
        for block in table:
            self.content.pop(block, None)

    @precondition(lambda self: self.content)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        block, prefix = data.draw(st.sampled_from(sorted(self.content.items())))
        link = links_of(list(prefix), self.page)[-1]
        self.pool.drop(link)
        self.pool.drop(link)
        del self.content[block]

    @precondition(lambda self: self.held() or self.content)
    @rule(data=st.data())
    def pin(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.held() | set(self.content))))
        self.pool.pin(block)
        self.pins.append(block)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        block = self.pins.pop(data.draw(st.integers(0, len(self.pins) - 1)))
        self.pool.unpin(block)
        self.let_go([block])

    @invariant()
    def whole(self) -> None:
        held = self.held()
        assert self.pool.check(self.tables) == []
        assert self.pool.in_use == len(held)
        assert self.pool.cached == len(set(self.content) - held)
        assert self.pool.free + self.pool.cached + self.pool.in_use == self.pool.num_blocks
        assert self.pool.evictions == self.evicted
        found = {block for block in range(self.pool.num_blocks) if self.pool.published(block)}
        assert found == set(self.content)
        lost = [links_of(list(prefix), self.page)[-1] for prefix in self.known - set(self.content.values())]
        assert sorted(self.forgotten) == sorted(lost), "each link that is lost is told of, once"
        self.known = set(self.content.values())
        self.forgotten.clear()
        for block in range(self.pool.num_blocks):
            uses = sum(table.count(block) for table in self.tables) + self.pins.count(block)
            assert self.pool.holders(block) == uses


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def published(pool: BlockPool, ids: list[int]) -> list[int]:
    table = pool.allocate(len(ids) // pool.block_size) or []
    for page, link in enumerate(links_of(ids, pool.block_size)):
        pool.publish(table[page], link, ids[page * pool.block_size : (page + 1) * pool.block_size])
    return table


def test_a_pinned_block_survives_its_sequence() -> None:
    """T-33: an asynchronous reader is still at it when the sequence is preempted."""
    pool = BlockPool(2, 4)
    table = published(pool, list(range(8)))
    pool.pin(table[0])
    pool.release(table)
    assert pool.allocate(2) is None
    assert pool.allocate(1) == [table[1]]
    pool.unpin(table[0])
    assert pool.match(links_of(list(range(8)), 4), list(range(8))) == [table[0]]


def test_an_evicted_block_is_never_found_again() -> None:
    """T-34."""
    pool = BlockPool(2, 4)
    pool.release(published(pool, list(range(8))))
    assert len(pool.match(links_of(list(range(8)), 4), list(range(8)))) == 2
    assert pool.allocate(1) is not None
    assert len(pool.match(links_of(list(range(8)), 4), list(range(8)))) == 1, "the tail went first"
    assert pool.evictions == 1


@given(st.integers(0, 7))
def test_a_colliding_link_does_not_answer_with_other_tokens(position: int) -> None:
    """T-37: the links agree (as if the hash had collided), the tokens do not."""
    pool = BlockPool(2, 4)
    published(pool, list(range(8)))
    other = list(range(8))
    other[position] = 99
    assert len(pool.match(links_of(list(range(8)), 4), other)) == position // 4


@given(st.integers(0, 8), st.integers(0, 12))
def test_the_reach_of_a_prefix_is_found_by_halving(cached: int, more: int) -> None:
    pool = BlockPool(12, 4)
    ids = list(range(4 * (cached + more)))
    published(pool, ids[: 4 * cached])
    links = links_of(ids, 4)
    assert pool.reach(links) == len(pool.match(links, ids)) == cached


def test_misuse_is_refused() -> None:
    pool = BlockPool(2, 4)
    (block,) = pool.allocate(1) or []
    with pytest.raises(ValueError, match="free"):
        pool.acquire([1 - block])
    with pytest.raises(ValueError, match="free"):
        pool.pin(1 - block)
    with pytest.raises(ValueError, match="not pinned"):
        pool.unpin(block)
    with pytest.raises(ValueError, match="full blocks"):
        pool.publish(block, b"x", [1, 2])
    pool.publish(block, b"x", [1, 2, 3, 4])
    with pytest.raises(ValueError, match="something else"):
        pool.publish(block, b"y", [1, 2, 3, 4])
    pool.release([block])
    with pytest.raises(ValueError, match="does not hold"):
        pool.release([block])
    with pytest.raises(ValueError, match="held by no sequence"):
        pool.publish(block, b"x", [1, 2, 3, 4])
    with pytest.raises(ValueError, match="at least one"):
        BlockPool(0, 16)


def test_check_sees_every_kind_of_damage() -> None:
    def damaged(break_it: str) -> list[str]:
        pool = BlockPool(3, 4)
        table = published(pool, list(range(8)))
        pool.release(table)
        tables: list[list[int]] = []
        exec(break_it, {"pool": pool, "table": table, "tables": tables})
        return pool.check(tables)

    assert damaged("") == []
    for break_it in (
        "pool._free.append(pool._free[0])",
        "pool._free.clear()",
        "pool._cached.clear()",
        "pool._index.clear()",
        "pool._index[b'ghost'] = 0",
        "pool._blocks[table[0]].holders += 1",
        "pool._blocks[table[0]].pins -= 1",
        "pool._blocks[table[0]].link = None",
        "pool._blocks[pool._free[0]].link = b'x'",
        "tables.append([table[0]])",
    ):
        assert damaged(break_it), break_it
