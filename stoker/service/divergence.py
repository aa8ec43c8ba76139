"""Where a session's new prompt leaves the one before it: what a client that puts a clock or a counter early in its
prompts loses of the prefix cache, as numbers it can be told.

Remembers the last few prompts of each session, since one session carries several (a title request, a sub-agent), and
bounds what it remembers of all of them. Decides nothing: the engine's cache is found by hashes, with or without this.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

MAX_SESSIONS = 10_000
MAX_PROMPTS = 4  # of one session
MAX_TOKENS = 16 << 20  # of all sessions, at four bytes
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


class Divergences:
    """The last prompts by (tenant, session). Safe for several threads; a call takes time in the size of a prompt."""

    def __init__(self, *, sessions: int = MAX_SESSIONS, prompts: int = MAX_PROMPTS, tokens: int = MAX_TOKENS) -> None:
        self._max_sessions, self._max_prompts, self._max_tokens = sessions, prompts, tokens
        self._sessions: OrderedDict[tuple[str, str], list[bytes]] = OrderedDict()
        self._held = 0  # bytes
        self._lock = threading.Lock()

    def observe(self, tenant: str, session: str, ids: Sequence[int]) -> Divergence | None:
        """Compare with what is remembered of the session, then remember `ids` in the place of what they continue.

        None for the first prompt of a session. The nearest of the remembered prompts counts: one that the new prompt
        continues before one it merely shares a start with, and then the longest shared start.
        """
        new = array("I", ids).tobytes()
        with self._lock:
            known = self._sessions.pop((tenant, session), [])
            best: tuple[bool, int, int] | None = None
            for place, old in enumerate(known):
                shared = _shared(old, new)
                candidate = (_is_resent(old, new, shared), shared, place)
                best = candidate if best is None else max(best, candidate)
            found = None
            if best is not None:
                resent, shared, place = best
                found = Divergence(shared=shared // 4, of=len(known[place]) // 4, resent=resent)
                if resent:
                    self._held -= len(known.pop(place))
            self._remember((tenant, session), known, new)
        return found

    def _remember(self, key: tuple[str, str], known: list[bytes], new: bytes) -> None:
        if len(new) <= 4 * self._max_tokens:
            known.append(new)
            self._held += len(new)
        while len(known) > self._max_prompts:
            self._held -= len(known.pop(0))
        self._sessions[key] = known
        while len(self._sessions) > self._max_sessions or self._held > 4 * self._max_tokens:
            oldest = next(iter(self._sessions))
            prompts = self._sessions[oldest]
            if prompts:
                self._held -= len(prompts.pop(0))
            if not prompts:
                del self._sessions[oldest]


def _shared(old: bytes, new: bytes) -> int:
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


def _is_resent(old: bytes, new: bytes, shared: int) -> bool:
    """Whether `new` continues `old`, all but for the opening of its answer, or has its last words after all."""
    end = len(old) - 4 * PROBE_GAP
    probe = old[max(end - 4 * PROBE, 0) : max(end, 0)]
    if shared >= max(end - 4 * PROBE, len(old) // 2):
        return True
    at = new.find(probe, shared) if probe else -1
    while at % 4 and at >= 0:
        at = new.find(probe, at + 1)
    return at >= 0
