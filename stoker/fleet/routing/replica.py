"""One replica as the router sees it: what it is, its load, the view of its cache, and how far that view can be trusted.

Owns the rules of sequence numbers: which events count, when something was missed, how a snapshot replaces the view.
"""

from __future__ import annotations

from hashlib import blake2b

from stoker.fleet.routing.index import PrefixIndex
from stoker.fleet.routing.load import Load
from stoker.fleet.routing.view import CacheView
from stoker.fleet.routing.words import IndexState, ReplicaInfo
from stoker.types.wire import EngineStats, KVEvents, KVSnapshot

LINK_BYTES = 16


class Replica:
    """`number` is its bit in the index, `salt` its part in every rendezvous."""

    __slots__ = ("_parts", "draining", "gaps", "info", "load", "number", "salt", "seq", "state", "transfer", "view")

    def __init__(self, info: ReplicaInfo, number: int, index: PrefixIndex, transfer: float) -> None:
        self.info, self.number, self.transfer = info, number, transfer
        self.load = Load(slots=info.slots, rate=info.prefill_rate, step=info.step_seconds)
        self.view = CacheView(index, 1 << number, info.capacity_tokens // info.block_tokens)
        self.state = IndexState.ABSENT
        self.draining = False
        self.gaps = 0  # how often events were missed
        self.seq = 0  # of the last events that were applied
        self.salt = int.from_bytes(blake2b(info.name.encode(), digest_size=8).digest())
        self._parts: set[bytes] | None = None  # of a snapshot that is not complete

    def events(self, news: KVEvents, now: float) -> bool:
        """Apply them. False: something is missing before them, and only a snapshot can mend it."""
        if self.state is not IndexState.EXACT:
            return self._parts is not None  # while one is on its way there is no need to ask again
        if news.seq <= self.seq:
            return True  # a repetition
        if news.seq != self.seq + 1:
            self._missed()
            return False
        self.seq = news.seq
        if news.cleared:
            self.view.keep_only(set())
        self.view.removed(_links(news.removed))
        self.view.stored(_links(news.stored), now)
        return True

    def snapshot(self, part: KVSnapshot, now: float) -> None:
        """One part of a snapshot; with its last the view is exact. Parts of different snapshots never mix."""
        if part.first:
            self._parts, self.seq = set(), part.seq
        elif self._parts is None or part.seq != self.seq:
            self._parts = None  # the beginning was missed
            self.state = IndexState.DEGRADED
            return
        if self.state is IndexState.EXACT or self.state is IndexState.ABSENT:
            self.state = IndexState.DEGRADED
        links = _links(part.blocks)
        assert self._parts is not None
        self._parts.update(links)
        self.view.stored(links, now)
        if not part.more:
            self.view.keep_only(self._parts)
            self._parts = None
            self.state = IndexState.EXACT

    def stats(self, stats: EngineStats) -> bool:
        """The engine's heartbeat. False: it has sent events that never came."""
        blocks = stats.blocks_free + stats.blocks_cached + stats.blocks_in_use
        if blocks:
            self.load.kv = stats.blocks_in_use / blocks
        if stats.decode_seconds:
            self.load.step = stats.decode_seconds
        if stats.prefill_rate:
            self.load.measured(stats.prefill_rate)
        if stats.kv_tokens and stats.kv_tokens // self.info.block_tokens != self.view.capacity:
            self.view.resize(stats.kv_tokens // self.info.block_tokens)
        if self.state is IndexState.EXACT and stats.kv_seq > self.seq:
            self._missed()
            return False
        return True

    def _missed(self) -> None:
        self.state = IndexState.DEGRADED
        self.gaps += 1


def _links(joined: bytes) -> list[bytes]:
    if len(joined) % LINK_BYTES:
        raise ValueError(f"{len(joined)} bytes are no whole number of links of {LINK_BYTES}")
    return [joined[at : at + LINK_BYTES] for at in range(0, len(joined), LINK_BYTES)]
