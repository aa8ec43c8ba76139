"""A prefix cache of one replica, to the token: least recently used out first, tails before heads, nothing pinned."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from bench.routing.segments import Path

BLOCK = 64  # tokens of the logical blocks that a change is told in


class Changes:
    """What a cache gained and lost, as (segment, blocks before, blocks now)."""

    def __init__(self) -> None:
        self.gained: list[tuple[int, int, int]] = []
        self.lost: list[tuple[int, int, int]] = []


class Cache:
    """`capacity` tokens. Of segment `s`, which has `tokens[s]`, `resident[s]` are there; the oldest comes first."""

    __slots__ = ("capacity", "resident", "tokens", "used")

    def __init__(self, capacity: int, tokens: Sequence[int]) -> None:
        self.capacity, self.tokens = capacity, tokens
        self.resident: OrderedDict[int, int] = OrderedDict()
        self.used = 0

    def match(self, path: Path) -> int:
        """Tokens of the longest resident prefix."""
        resident, tokens = self.resident, self.tokens
        hit = 0
        for s in path:
            there = resident.get(s, 0)
            hit += there
            if there < tokens[s]:
                break
        return hit

    def insert(self, path: Path, changes: Changes | None = None) -> None:
        """All of `path` is there now, and used last; its head last of all."""
        resident, tokens = self.resident, self.tokens
        for s in reversed(path):
            there, full = resident.get(s, 0), tokens[s]
            resident[s] = full
            resident.move_to_end(s)
            if there < full:
                self.used += full - there
                if changes:
                    changes.gained.append((s, there // BLOCK, full // BLOCK))
        over = self.used - self.capacity
        while over > 0:
            s, there = next(iter(resident.items()))
            left = max(there - over, 0)
            if left:
                resident[s] = left
            else:
                del resident[s]
            if changes:
                changes.lost.append((s, there // BLOCK, left // BLOCK))
            over -= there - left
            self.used -= there - left
