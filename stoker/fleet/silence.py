"""When a silent engine counts as hung: pure, with the times it is told.

Silence is counted in what the watcher itself was awake for. Where the host slept or this process stood still,
heartbeats lie unread, and an engine must not be ended for it.
"""

from __future__ import annotations

from stoker.types.wire import EngineStats

TICK_SECONDS = 0.5
HUNG_SECONDS = 5.0
HUNG_STEPS = 4.0  # predicted durations of the step in flight


class Silence:
    """One engine life. `tick` it about every `TICK_SECONDS`."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._silent = 0.0

    def tick(self, now: float, heartbeat_age: float, stats: EngineStats | None) -> float | None:
        """Seconds of silence once they are too many, else None."""
        passed = 0.0 if self._last is None else now - self._last
        self._last = now
        if heartbeat_age <= passed:
            self._silent = heartbeat_age
        else:
            self._silent += min(passed, 2 * TICK_SECONDS)
        return self._silent if self._silent > limit(stats) else None


def limit(stats: EngineStats | None) -> float:
    """Seconds that this engine may be silent."""
    return max(HUNG_SECONDS, HUNG_STEPS * stats.predicted if stats else 0.0)
