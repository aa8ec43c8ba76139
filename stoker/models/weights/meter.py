"""How far loading is, in bytes and bytes per second, for a person."""

from __future__ import annotations

import time
from collections.abc import Callable

STAGE = "loading weights"
_EVERY = 5.0  # seconds between two texts: each is a line in a log


class LoadMeter:
    """Tells `progress` (stage, fraction 0..1). Loading that takes long has bytes and rate in its stage."""

    def __init__(
        self, total: int, progress: Callable[[str, float], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total = total
        self._progress = progress
        self._clock = clock
        self._begun = self._told = clock()
        self._done = 0
        self._stage = STAGE

    def add(self, size: int) -> None:
        self._done += size
        self.tell()

    def skip(self, size: int) -> None:
        """So many bytes are not needed."""
        self._total -= size

    def tell(self) -> None:
        now = self._clock()
        if now - self._told >= _EVERY:
            self._told = now
            self._stage = f"{STAGE}, {_gigabytes(self._done)} of {_gigabytes(self._total)} GB, {self._rate(now)} GB/s"
        self._progress(self._stage, min(self._done / self._total, 1.0) if self._total else 1.0)

    def finish(self) -> None:
        now = self._clock()
        if now - self._begun >= _EVERY:
            self._stage = (
                f"loaded {_gigabytes(self._done)} GB of weights in {now - self._begun:.0f} s, {self._rate(now)} GB/s"
            )
        self._progress(self._stage, 1.0)

    def _rate(self, now: float) -> str:
        return f"{self._done / 1e9 / max(now - self._begun, 1e-9):.2f}"


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f}"
