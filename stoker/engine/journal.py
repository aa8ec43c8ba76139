"""What changed in the prefix cache, in logical blocks of 64 tokens, for whoever routes by it.

Owns the translation of pages to logical blocks, the batches and their numbers. Does not own subscribers
(`process.py`), and costs nothing while there are none: the pool then has nobody to tell.

A logical block is stored while all its pages can be found. Its name is the link of its last page, so a page may be part
of several: prompts that part in the middle of a block share the pages before.
"""

from __future__ import annotations

from stoker.engine.blocks import BlockPool
from stoker.engine.chain import LINK_BYTES
from stoker.types.wire import KVEvents, KVSnapshot

PART_BLOCKS = 4096  # names in one message of a snapshot: 64 KiB


class Journal:
    """`start`, then `drain` after every step; `snapshot` right after a `drain` agrees with the events that follow.

    seq  of the last events, over the whole life of the engine
    """

    def __init__(self, pool: BlockPool) -> None:
        self.seq = 0
        self._pool = pool
        self._pages: dict[bytes, tuple[bytes, ...]] = {}  # of each block whose last page can be found
        self._blocks: dict[bytes, list[bytes]] = {}  # that each page is part of, of the same blocks
        self._stored: set[bytes] = set()
        self._new: set[bytes] = set()
        self._lost: set[bytes] = set()

    def start(self) -> None:
        """Watch the pool from now on. Once more changes nothing. O(all pages)"""
        if self not in self._pool.watchers:
            for link, group in self._pool.indexed():
                self._enter(link, group)
            self._stored = {name for name in self._pages if self._whole(name)}
            self._pool.watchers.append(self)

    def stop(self) -> None:
        """Nobody wants to know."""
        if self in self._pool.watchers:
            self._pool.watchers.remove(self)
        for record in (self._pages, self._blocks, self._stored, self._new, self._lost):
            record.clear()

    def drain(self) -> KVEvents | None:
        """What changed since the last time; None if nothing did."""
        if not self._new and not self._lost:
            return None
        self.seq += 1
        events = KVEvents(seq=self.seq, stored=b"".join(self._new), removed=b"".join(self._lost))
        self._new.clear()
        self._lost.clear()
        return events

    def snapshot(self) -> list[KVSnapshot]:
        """All that is stored, in parts of bounded size. `drain` comes before, so that nothing is told twice."""
        names = b"".join(self._stored)
        size = PART_BLOCKS * LINK_BYTES
        parts = [names[at : at + size] for at in range(0, len(names), size)] or [b""]
        last = len(parts) - 1
        return [
            KVSnapshot(seq=self.seq, blocks=part, first=place == 0, more=place < last)
            for place, part in enumerate(parts)
        ]

    def published(self, link: bytes, group: tuple[bytes, ...]) -> None:
        """The pool tells: the page `link` can be found from now on. `group` as in `BlockPool.publish`."""
        self._enter(link, group)
        for name in self._blocks.get(link, ()):
            if name not in self._stored and self._whole(name):
                self._stored.add(name)
                _move(name, self._lost, self._new)

    def withdrawn(self, link: bytes) -> None:
        """The pool tells: the page `link` cannot be found any more."""
        for name in self._blocks.get(link, ()):
            if name in self._stored:
                self._stored.discard(name)
                _move(name, self._new, self._lost)
        for page in self._pages.pop(link, ()):
            names = self._blocks[page]
            names.remove(link)
            if not names:
                del self._blocks[page]

    def _enter(self, link: bytes, group: tuple[bytes, ...]) -> None:
        if group:
            self._pages[link] = group
            for page in group:
                self._blocks.setdefault(page, []).append(link)

    def _whole(self, name: bytes) -> bool:
        return all(self._pool.knows(page) for page in self._pages[name])


def _move(name: bytes, undone: set[bytes], done: set[bytes]) -> None:
    """What comes back before anybody was told that it had gone never went."""
    if name in undone:
        undone.discard(name)
    else:
        done.add(name)
