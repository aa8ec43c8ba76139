"""A subscriber's place in an engine's KV events: what may be passed on, and whether something was missed.

Owns sequence numbers on the reader's side; mirrors nothing itself (`fleet/` does) and sends nothing (`client.py` does).
"""

from __future__ import annotations

from stoker.types.wire import KVEvents, KVSnapshot

PATIENCE = 2  # heartbeats without the snapshot that was asked for: the first may have crossed with the question


class Feed:
    """`take` every KV message and `behind` every heartbeat, in the order they came; `restart` when asking anew.

    What `take` lets through is a whole snapshot, part by part, and then events without a gap, again and again. A
    snapshot that breaks off is followed by another one's first part.
    """

    def __init__(self) -> None:
        self._seq: int | None = None  # of the last events that were passed on; None before a whole snapshot was
        self._parts = False  # within a snapshot
        self._beats = 0  # since it was asked for

    def restart(self) -> None:
        """A snapshot is on its way."""
        self._seq, self._parts, self._beats = None, False, 0

    def take(self, message: KVSnapshot | KVEvents) -> bool:
        """Whether the reader shall see `message`."""
        if isinstance(message, KVSnapshot):
            if not (message.first or self._parts):
                return False
            self._parts = message.more
            self._seq = None if message.more else message.seq
            return True
        if self._seq is None or message.seq != self._seq + 1:
            return False
        self._seq = message.seq
        return True

    def behind(self, seq: int) -> bool:
        """Whether to subscribe again: the engine, whose heartbeat comes in order with its events, is at `seq`."""
        if self._seq is not None:
            return seq != self._seq
        self._beats += 1
        return self._beats > PATIENCE
