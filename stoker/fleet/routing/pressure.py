"""How hard the whole fleet is pressed, by two running means: how busy it is, and how soon a prefix is used again.

Both are measured, none is set. They tell the policies what computing something again costs *others* (the queue behind
it) and what pushing something out of a cache costs (its next user computes it again). Does not know single replicas.
"""

from __future__ import annotations

import math

WINDOW_SECONDS = 60.0
REUSE_SECONDS = 60.0  # before the first was measured
REUSE_GAIN = 0.01


class Pressure:
    """`reuse`: mean seconds between two uses of the same prefix."""

    def __init__(self) -> None:
        self.reuse = REUSE_SECONDS
        self._sent = 0.0  # prefill seconds that were sent out, each fading with its age
        self._at = 0.0

    def busy(self, now: float, replicas: int) -> float:
        """Prefill seconds sent out per second and replica, over the last minute: 1 is all that they can do."""
        return self._faded(now) / WINDOW_SECONDS / max(replicas, 1)

    def sent(self, seconds: float, since: float | None, now: float) -> None:
        """A prompt with so many seconds of prefill was sent; its known part was used `since` seconds before."""
        self._sent, self._at = self._faded(now) + seconds, now
        if since:
            self.reuse += REUSE_GAIN * (since - self.reuse)

    def _faded(self, now: float) -> float:
        return self._sent * math.exp((self._at - now) / WINDOW_SECONDS)
