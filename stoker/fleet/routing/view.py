"""The router's own view of one replica's prefix cache: what will be resident when a request sent now gets its turn.

Fed at dispatch, in dispatch order, with the replica's true capacity, and losing blocks as the engine does: least
recently used first, tails before heads. Corrected by the engine's events. Does not choose replicas.

An engine's events say what is resident *now*; a request that queues needs to know what will be when it starts. With
engines that serve in order those differ by exactly what is queued, which is what the router itself has sent. Hence
two rules: a dispatched prompt counts at once, and a removal does not touch what a request still in the queue will use,
for that request brings it back.

Every block belongs to one *run*, the newest prompt that contains it. Runs leave in order of age, each from its end.
Cost of a dispatch: a few C loops over its blocks, Python only for blocks that are new here.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from stoker.fleet.routing.index import PrefixIndex


class _Run:
    """`blocks` in chain order, of which `live` still belong to this run; the others have moved on or are gone."""

    __slots__ = ("blocks", "live")

    def __init__(self, blocks: list[bytes]) -> None:
        self.blocks = blocks
        self.live = len(blocks)


class CacheView:
    """`capacity` in blocks, `bit` this replica's in `index`. Not more than `capacity` blocks are ever kept."""

    def __init__(self, index: PrefixIndex, bit: int, capacity: int) -> None:
        self.capacity = max(capacity, 1)
        self._index, self._bit = index, bit
        self._runs: OrderedDict[int, _Run] = OrderedDict()  # by stamp, oldest first
        self._stamps: dict[bytes, int] = {}  # block -> stamp of its run
        self._queued: set[int] = set()  # stamps of prompts that have not begun
        self._next = 0

    def __len__(self) -> int:
        return len(self._stamps)

    def __contains__(self, block: bytes) -> bool:
        return block in self._stamps

    def dispatched(self, blocks: Sequence[bytes]) -> int:
        """A prompt was sent there: it is what is used last now. Returns a stamp for `begun`."""
        stamp = self._touch(blocks[: self.capacity])
        self._queued.add(stamp)
        self._shrink()
        return stamp

    def begun(self, stamp: int) -> None:
        """The prompt has left the queue (begun, refused, aborted): from here on events alone tell of its blocks."""
        self._queued.discard(stamp)

    def stored(self, blocks: Iterable[bytes]) -> None:
        """The engine has these; what the view has of them already keeps its place."""
        fresh = [block for block in blocks if block not in self._stamps]
        if fresh:
            self._touch(fresh)
            self._shrink()

    def removed(self, blocks: Iterable[bytes]) -> None:
        """The engine has lost these. What a queued prompt will bring back stays."""
        stamps, queued = self._stamps, self._queued
        for block in blocks:
            stamp = stamps.get(block)
            if stamp is not None and stamp not in queued:
                self._drop(block, stamp)

    def keep_only(self, blocks: set[bytes]) -> None:
        """The engine has no others than these, and what queued prompts will bring."""
        self.removed(list(self._stamps.keys() - blocks))

    def clear(self) -> None:
        """Nothing is there any more, nor queued."""
        for block in self._stamps:
            self._index.discard(block, self._bit)
        self._stamps.clear()
        self._runs.clear()
        self._queued.clear()

    def resize(self, capacity: int) -> None:
        self.capacity = max(capacity, 1)
        self._shrink()

    def check(self) -> list[str]:
        """What is wrong, in words; empty when the view is whole. O(blocks), for tests."""
        faults: list[str] = []
        counts = Counter(self._stamps.values())
        for stamp, run in self._runs.items():
            if run.live != counts.pop(stamp, 0):
                faults.append(f"run {stamp} counts {run.live} blocks wrongly")
            if run.live < 1 or len(run.blocks) > 2 * run.live + 8:
                faults.append(f"run {stamp} keeps {len(run.blocks)} blocks for {run.live}")
        faults += [f"run {stamp} is lost" for stamp in counts]
        held = {block for block, mask in self._index.holders.items() if mask & self._bit}
        if held != self._stamps.keys():
            faults.append("index and view disagree")
        if len(self._stamps) > self.capacity:
            faults.append(f"{len(self._stamps)} blocks in {self.capacity}")
        return faults

    def _touch(self, blocks: Sequence[bytes]) -> int:
        self._next = stamp = self._next + 1
        stamps = self._stamps
        renewed = dict.fromkeys(blocks, stamp)
        if renewed:
            moved = Counter(map(stamps.get, renewed))
            if moved.pop(None, 0):
                self._index.add([block for block in renewed if block not in stamps], self._bit)
            stamps.update(renewed)
            self._runs[stamp] = _Run(list(renewed))
            for old, count in moved.items():
                if old is not None:
                    self._left(old, count)
        return stamp

    def _left(self, stamp: int, count: int) -> None:
        """`count` blocks of a run are no longer its own. What it keeps for nothing stays below what it keeps."""
        run = self._runs[stamp]
        run.live -= count
        if not run.live:
            del self._runs[stamp]
        elif len(run.blocks) > 2 * run.live + 8:
            get = self._stamps.get
            run.blocks = [block for block in run.blocks if get(block) == stamp]

    def _drop(self, block: bytes, stamp: int) -> None:
        del self._stamps[block]
        self._index.discard(block, self._bit)
        self._left(stamp, 1)

    def _shrink(self) -> None:
        stamps = self._stamps
        while len(stamps) > self.capacity:
            stamp, run = next(iter(self._runs.items()))
            block = run.blocks.pop()
            if stamps.get(block) == stamp:
                self._drop(block, stamp)
