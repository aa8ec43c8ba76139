"""Which replica holds which block: one dictionary for the fleet, asked for the longest resident prefix on each replica.

Owns the map from a block's link to the set of its holders, a bit mask. What is in a replica's set, and in which order
it leaves, is decided in `view.py`.

A link stands for its block and all before it, and caches lose tails before heads. So along a prompt the sets of holders
only shrink, and where each replica drops out is found by bisection: O(distinct depths x log blocks), not
O(blocks x replicas). A hole (an engine that lost a head and kept its tail) makes the answer too long, until
the prompt is dispatched there once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class PrefixIndex:
    """`holders[link]` has bit `i` set while replica `i` is believed to hold that block. No entry is 0."""

    __slots__ = ("holders",)

    def __init__(self) -> None:
        self.holders: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self.holders)

    def add(self, blocks: Iterable[bytes], bit: int) -> None:
        holders = self.holders
        get = holders.get
        for block in blocks:
            holders[block] = get(block, 0) | bit

    def discard(self, block: bytes, bit: int) -> None:
        left = self.holders.get(block, 0) & ~bit
        if left:
            self.holders[block] = left
        else:
            self.holders.pop(block, None)

    def depths(self, blocks: Sequence[bytes], among: int) -> dict[int, int]:
        """Replica's number -> blocks of the longest resident prefix, for those of the mask `among` that hold any."""
        get = self.holders.get
        found: dict[int, int] = {}
        alive, known, end = among, 0, len(blocks)  # all of `alive` hold the first `known` blocks
        while known < end:
            holding = get(blocks[known], 0) & alive
            _settle(alive ^ holding, known, found)
            alive = holding
            if not alive:
                return found
            low, high = known, end - 1  # all of `alive` hold blocks[low], not all hold blocks[high]
            if get(blocks[high], 0) & alive == alive:
                low = high
            while high - low > 1:
                middle = (low + high) // 2
                if get(blocks[middle], 0) & alive == alive:
                    low = middle
                else:
                    high = middle
            known = low + 1
        _settle(alive, known, found)
        return found


def _settle(mask: int, depth: int, found: dict[int, int]) -> None:
    while mask and depth:
        bit = mask & -mask
        found[bit.bit_length() - 1] = depth
        mask ^= bit
