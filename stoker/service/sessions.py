"""The last prompts of each session, in one bounded memory: what a new one shares with them need not be hashed again,
and where it leaves them can be told (`divergence.py`).

Keeps a few prompts of each session, since one session carries several (a title request, a sub-agent), always by tenant
and session together. Ids and links are all that is kept, and only of tenants that allow it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

from stoker.engine.chain import ChainScheme, pack
from stoker.service.divergence import Divergence, is_resent, shared_bytes
from stoker.types.wire import ImageSpan

MAX_SESSIONS = 10_000
MAX_PROMPTS = 4  # of one session
IMAGE_BYTES = 128  # counted for what is remembered of an image
MAX_BYTES = 80 << 20  # of all sessions: 16 million tokens at four bytes, and a link for every page of them


def cache_domain(tenant: str) -> str:
    """Who may share KV: each tenant with itself alone."""
    return f"tenant:{tenant}"


class _Prompt(NamedTuple):
    """Packed ids, and the links of their full pages end to end. The images of the prompt are in the links too, so they
    must be the same before links are taken over."""

    ids: bytes
    links: bytes
    images: tuple[ImageSpan, ...] = ()

    @property
    def size(self) -> int:
        return len(self.ids) + len(self.links) + IMAGE_BYTES * len(self.images)

    def shared(self, ids: bytes, images: Sequence[ImageSpan]) -> int:
        """Bytes of ids up to which another prompt is the same."""
        shared = shared_bytes(self.ids, ids)
        for old, new in zip_longest(self.images, images):
            if old != new:
                differ = min(image.start for image in (old, new) if image is not None)
                return min(shared, 4 * differ)
        return shared


class Sessions:
    """Safe for several threads; a call takes time in the size of a prompt. Without a `scheme` there are no links."""

    def __init__(
        self,
        scheme: ChainScheme | None = None,
        *,
        sessions: int = MAX_SESSIONS,
        prompts: int = MAX_PROMPTS,
        size: int = MAX_BYTES,
    ) -> None:
        self._scheme = scheme
        self._max_sessions, self._max_prompts, self._max_size = sessions, prompts, size
        self._sessions: OrderedDict[tuple[str, str], list[_Prompt]] = OrderedDict()
        self._held = 0  # bytes
        self._lock = threading.Lock()

    def blocks(self, links: bytes) -> list[bytes]:
        """The logical blocks that a prompt's `links` have in them."""
        return [] if self._scheme is None else self._scheme.blocks(links)

    def links(self, tenant: str, ids: Sequence[int], images: Sequence[ImageSpan] = ()) -> bytes:
        """The links of a prompt that belongs to no session, all of them made anew."""
        return self._link(tenant, b"", pack(ids), images)

    def observe(
        self, tenant: str, session: str, ids: Sequence[int], images: Sequence[ImageSpan] = ()
    ) -> tuple[Divergence | None, bytes]:
        """Compare with what is remembered of the session, then remember `ids` in the place of what they continue.
        Returns where they leave it, None for the first prompt of a session, and the links of `ids` with `images`.

        The nearest of the remembered prompts counts: one that the new prompt continues before one it merely shares a
        start with, and then the longest shared start.
        """
        new = pack(ids)
        with self._lock:
            known = tuple(self._sessions.get((tenant, session), ()))
        best: tuple[bool, int, int] | None = None
        for place, old in enumerate(known):
            shared = old.shared(new, images)
            candidate = (is_resent(old.ids, new, shared), shared, place)
            best = candidate if best is None else max(best, candidate)
        if best is None:
            links = self._link(tenant, b"", new, images)
            self._remember((tenant, session), None, _Prompt(new, links, tuple(images)))
            return None, links
        resent, shared, place = best
        nearest = known[place]
        links = self._link(tenant, self._shared_links(nearest, shared), new, images)
        self._remember((tenant, session), nearest if resent else None, _Prompt(new, links, tuple(images)))
        return Divergence(shared=shared // 4, of=len(nearest.ids) // 4, resent=resent), links

    def _link(self, tenant: str, known: bytes, packed: bytes, images: Sequence[ImageSpan]) -> bytes:
        if self._scheme is None:
            return b""
        return self._scheme.extend(known, self._scheme.root(domain=cache_domain(tenant)), packed, images)

    def _shared_links(self, prompt: _Prompt, shared: int) -> bytes:
        """The links of the pages that lie within the first `shared` bytes of `prompt`."""
        return b"" if self._scheme is None else self._scheme.within(prompt.links, shared)

    def _remember(self, key: tuple[str, str], old: _Prompt | None, new: _Prompt) -> None:
        """`new` in the place of `old`, which another thread may have replaced meanwhile."""
        with self._lock:
            known = self._sessions.pop(key, [])
            for place, prompt in enumerate(known):
                if prompt is old:
                    self._held -= known.pop(place).size
                    break
            if new.size <= self._max_size:
                known.append(new)
                self._held += new.size
            while len(known) > self._max_prompts:
                self._held -= known.pop(0).size
            self._sessions[key] = known
            while len(self._sessions) > self._max_sessions or self._held > self._max_size:
                oldest = next(iter(self._sessions))
                prompts = self._sessions[oldest]
                if prompts:
                    self._held -= prompts.pop(0).size
                if not prompts:
                    del self._sessions[oldest]
