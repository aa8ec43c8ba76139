"""The block pool: every physical KV block of this engine, and which of them can be found again.

Owns who holds a block, the index from chain link to block, and the order of eviction. Knows nothing of sequences,
lanes or tensors, and never decides who deserves a block.

    free ── allocate ──> in use ── release (not indexed) ──> free
                           │  ^
                   release │  │ acquire (a hit)
                 (indexed) v  │
                          cached ── evicted by allocate ──> in use, for somebody else

free + cached + in use = all, at every moment. Every operation costs O(1) per block it names.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(slots=True)
class _Block:
    """`holders` counts sequences, `pins` asynchronous readers; `link`, `token_ids` and `group` are set while it is
    indexed."""

    holders: int = 0
    pins: int = 0
    link: bytes | None = None
    token_ids: list[int] = field(default_factory=list[int])
    group: tuple[bytes, ...] = ()


class Watcher(Protocol):
    """Hears of every change of the index, in order and after it is made."""

    def published(self, link: bytes, group: tuple[bytes, ...]) -> None: ...

    def withdrawn(self, link: bytes) -> None: ...


class BlockPool:
    """`num_blocks` blocks of `block_size` KV slots each.

    A block may be found only between `publish` and its eviction, and its content is fixed in that time: the caller
    publishes after the step that computed it, and never writes to a published block.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a block pool needs at least one block of one slot, not {num_blocks} of {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.evictions = 0
        self.releases = 0  # grows whenever room may have come back
        self.watchers: list[Watcher] = []
        self._blocks = [_Block() for _ in range(num_blocks)]
        self._free = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()  # indexed and held by nobody, least recently used first
        self._index: dict[bytes, int] = {}

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def in_use(self) -> int:
        return self.num_blocks - len(self._free) - len(self._cached)

    @property
    def available(self) -> int:
        """Blocks that `allocate` could give out now."""
        return len(self._free) + len(self._cached)

    def holders(self, block: int) -> int:
        """Sequences and asynchronous readers that keep `block` from being reused."""
        return self._blocks[block].holders + self._blocks[block].pins

    def published(self, block: int) -> bool:
        """Whether others can find `block`."""
        return self._blocks[block].link is not None

    def knows(self, link: bytes) -> bool:
        """Whether a block can be found under `link`."""
        return link in self._index

    def reach(self, links: Sequence[bytes]) -> int:
        """About how many of `links`, from the first, can be found: by halving, so where one in the middle is gone it
        may be too many. For estimates; `match` is exact."""
        low, high = 0, len(links)
        while low < high:
            middle = (low + high) // 2
            if links[middle] in self._index:
                low = middle + 1
            else:
                high = middle
        return low

    def indexed(self) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
        """The link and group of every block that can be found."""
        return ((link, self._blocks[number].group) for link, number in self._index.items())

    def match(self, links: Sequence[bytes], token_ids: Sequence[int]) -> list[int]:
        """Blocks that hold the longest known prefix of `links`; `token_ids` are the ids the links were made from.

        Changes nothing: the result holds only until the next `allocate`, unless it is acquired before. The ids of each
        hit are compared, so a stale entry or a collision ends the match instead of answering with foreign KV.
        """
        found: list[int] = []
        size, at = self.block_size, 0
        for link in links:
            block = self._index.get(link)
            if block is None or self._blocks[block].token_ids != token_ids[at : at + size]:
                break
            found.append(block)
            at += size
        return found

    def acquire(self, blocks: Iterable[int]) -> None:
        """One more sequence holds each of `blocks`, which were matched or are in use."""
        for number in blocks:
            block = self._blocks[number]
            if not self._hold(number):
                raise ValueError(f"block {number} is free: it holds nothing to share")
            block.holders += 1

    def allocate(self, count: int) -> list[int] | None:
        """`count` blocks with nothing in them, held once; None (and no change) if so many are not to be had.

        Free blocks go first, then cached ones, least recently used first; an evicted block leaves the index here.
        """
        if count > self.available:
            return None
        taken: list[int] = []
        for _ in range(count):
            if self._free:
                number = self._free.pop()
            else:
                number, _ = self._cached.popitem(last=False)
                self._unindex(number)
                self.evictions += 1
            self._blocks[number].holders = 1
            taken.append(number)
        return taken

    def publish(self, block: int, link: bytes, token_ids: Sequence[int], group: tuple[bytes, ...] = ()) -> bool:
        """Make a computed, full block findable. False if another block already stands for `link`: a duplicate stays
        out of the index and becomes free when it is released.

        `group`: if this is the last page of a logical block, the links of all its pages, this one last.
        """
        entry = self._blocks[block]
        if entry.holders == 0:
            raise ValueError(f"block {block} is held by no sequence, so nobody can have computed it")
        if len(token_ids) != self.block_size:
            raise ValueError(f"only full blocks are published: {len(token_ids)} ids, {self.block_size} slots")
        if self._index.setdefault(link, block) != block:
            return False
        if entry.link not in (None, link):
            raise ValueError(f"block {block} is published already, as something else")
        if entry.link is None:
            entry.link, entry.token_ids, entry.group = link, list(token_ids), group
            for watcher in self.watchers:
                watcher.published(link, group)
        return True

    def retract(self, blocks: Iterable[int]) -> None:
        """Take held blocks out of the index: their content is suspect. Who holds them is not told."""
        for number in blocks:
            if self._blocks[number].link is not None:
                self._unindex(number)

    def drop(self, link: bytes) -> None:
        """Make the block that stands for `link`, if there is one, unfindable; if nobody holds it, it is free."""
        number = self._index.get(link)
        if number is None:
            return
        self._unindex(number)
        if number in self._cached:
            del self._cached[number]
            self._free.append(number)

    def release(self, blocks: Sequence[int]) -> None:
        """One sequence lets go of `blocks`, in the order of its table: tails are evicted before heads."""
        self.releases += 1
        for number in reversed(blocks):
            block = self._blocks[number]
            if block.holders == 0:
                raise ValueError(f"block {number} is released by a sequence that does not hold it")
            block.holders -= 1
            self._settle(number)

    def pin(self, block: int) -> None:
        """An asynchronous reader (tier, transfer) keeps `block` from reuse, whatever its sequences do meanwhile."""
        if not self._hold(block):
            raise ValueError(f"block {block} is free: there is nothing to read in it")
        self._blocks[block].pins += 1

    def unpin(self, block: int) -> None:
        """The reader is done."""
        if self._blocks[block].pins == 0:
            raise ValueError(f"block {block} is not pinned")
        self.releases += 1
        self._blocks[block].pins -= 1
        self._settle(block)

    def check(self, tables: Iterable[Sequence[int]]) -> list[str]:
        """Everything that is wrong, in words; empty when the pool is whole. `tables` are the block tables of all
        sequences that hold blocks. O(all blocks), for idle moments."""
        faults: list[str] = []
        expected = Counter(number for table in tables for number in table)
        for number, block in enumerate(self._blocks):
            if block.holders != expected[number]:
                faults.append(f"block {number} is held {block.holders} times and is in {expected[number]} tables")
        free, cached = set(self._free), set(self._cached)
        if len(free) != len(self._free):
            faults.append("a block is in the free list twice")
        for number, block in enumerate(self._blocks):
            held, indexed = block.holders + block.pins > 0, block.link is not None
            where = (held, number in cached, number in free)
            if min(block.holders, block.pins) < 0 or where.count(True) != 1:
                faults.append(f"block {number} is in {where.count(True)} of free, cached and in use")
            if indexed and self._index.get(block.link or b"") != number:
                faults.append(f"block {number} believes it is in the index and is not")
            if number in cached and not indexed:
                faults.append(f"block {number} is cached and cannot be found")
            if number in free and indexed:
                faults.append(f"block {number} is free and can be found")
        if len(self._index) != sum(block.link is not None for block in self._blocks):
            faults.append("the index has entries that no block knows of")
        return faults

    def _hold(self, number: int) -> bool:
        """Take `number` out of the cached blocks if it is there. False if it is free."""
        block = self._blocks[number]
        if block.holders + block.pins == 0:
            if block.link is None:
                return False
            del self._cached[number]
        return True

    def _settle(self, number: int) -> None:
        """Put a block that nobody holds any more where it belongs."""
        block = self._blocks[number]
        if block.holders + block.pins:
            return
        if block.link is None:
            self._free.append(number)
        else:
            self._cached[number] = None

    def _unindex(self, number: int) -> None:
        block = self._blocks[number]
        link = block.link
        assert link is not None
        del self._index[link]
        block.link, block.token_ids, block.group = None, [], ()
        for watcher in self.watchers:
            watcher.withdrawn(link)
