"""Where a session's new prompt leaves the one before it: what a client that puts a clock or a counter early in its
prompts loses of the prefix cache, as numbers it can be told.

Pure arithmetic on packed ids (four bytes each); `sessions.py` remembers them. Decides nothing: the engine's cache is
found by hashes, with or without this.
"""

from __future__ import annotations

import msgspec

PROBE, PROBE_GAP = 32, 16  # tokens looked for again, and how far before the old prompt's end they end


class Divergence(msgspec.Struct, frozen=True):
    """The new prompt equals an earlier one of its session up to token `shared`, which had `of` tokens.

    `resent` says that it is the same conversation: it goes on from there, or has the earlier one's last words again
    behind something that changed, so that `lost` tokens must be computed a second time. Else it is another thread.
    """

    shared: int
    of: int
    resent: bool

    @property
    def lost(self) -> int:
        return self.of - self.shared if self.resent else 0


def shared_bytes(old: bytes, new: bytes) -> int:
    """Bytes of the common start, a multiple of four. Halves the range with comparisons that run at memory speed."""
    low, high = 0, min(len(old), len(new)) // 4
    left, right = memoryview(old), memoryview(new)
    while low < high:
        middle = (low + high + 1) // 2
        if left[4 * low : 4 * middle] == right[4 * low : 4 * middle]:
            low = middle
        else:
            high = middle - 1
    return 4 * low


def is_resent(old: bytes, new: bytes, shared: int) -> bool:
    """Whether `new` continues `old`, all but for the opening of its answer, or has its last words after all."""
    end = len(old) - 4 * PROBE_GAP
    probe = old[max(end - 4 * PROBE, 0) : max(end, 0)]
    if shared >= max(end - 4 * PROBE, len(old) // 2):
        return True
    at = new.find(probe, shared) if probe else -1
    while at % 4 and at >= 0:
        at = new.find(probe, at + 1)
    return at >= 0
