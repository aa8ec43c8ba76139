"""Where each session was last: (tenant, session) -> replica, with its size. A record, bounded in number and age.

Read with the tenant only, so that nobody's session can be reached or guessed from another tenant, and never from a
client's word: a client names sessions, not replicas. Does not decide.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

Key = tuple[str, str]  # tenant, session


@dataclass(slots=True)
class Binding:
    """`tokens` is the longest prompt seen; `used` the time of the last."""

    replica: str
    tokens: int
    used: float


class Bindings:
    """At most `limit`, forgotten `idle` seconds after their last use. A session is live for `live` seconds after it."""

    def __init__(self, limit: int, idle: float, live: float) -> None:
        self._limit, self._idle, self._live_seconds = max(limit, 1), idle, live
        self._known: OrderedDict[Key, Binding] = OrderedDict()  # the longest unused first, as in `_live`
        self._live: OrderedDict[Key, Binding] = OrderedDict()
        self._context: dict[str, int] = {}  # tokens of live sessions, by replica

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Key, now: float) -> Binding | None:
        self._expire(now)
        return self._known.get(key)

    def bind(self, key: Key, replica: str, tokens: int, now: float) -> None:
        before = self._forget(key)
        if before is not None:
            tokens = max(tokens, before.tokens)
        self._known[key] = self._live[key] = Binding(replica, tokens, now)
        self._context[replica] = self._context.get(replica, 0) + tokens
        if len(self._known) > self._limit:
            self._forget(next(iter(self._known)))
        self._expire(now)

    def context(self, replicas: Iterable[str], now: float) -> int:
        """Tokens of the live sessions that are bound to any of `replicas`."""
        self._expire(now)
        return sum(self._context.get(replica, 0) for replica in replicas)

    def _expire(self, now: float) -> None:
        while self._live and next(iter(self._live.values())).used < now - self._live_seconds:
            self._rest(next(iter(self._live)))
        while self._known and next(iter(self._known.values())).used < now - self._idle:
            self._forget(next(iter(self._known)))

    def _forget(self, key: Key) -> Binding | None:
        self._rest(key)
        return self._known.pop(key, None)

    def _rest(self, key: Key) -> None:
        """The session is not live any more, if it was."""
        binding = self._live.pop(key, None)
        if binding is not None:
            self._context[binding.replica] -= binding.tokens
            if not self._context[binding.replica]:
                del self._context[binding.replica]
