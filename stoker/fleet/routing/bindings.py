"""Where each session was last: (tenant, session) -> replica, with its size. A record, bounded in number and age.

Read with the tenant only, so that nobody's session can be reached or guessed from another tenant, and never from a
client's word: a client names sessions, not replicas. Does not decide.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

Key = tuple[str, str]  # tenant, session


@dataclass(slots=True)
class Binding:
    """`tokens` is the longest prompt seen; `used` the time of the last."""

    replica: str
    tokens: int
    used: float


class Bindings:
    """At most `limit`, forgotten `idle` seconds after their last use. `context` sums their tokens by replica."""

    def __init__(self, limit: int, idle: float) -> None:
        self._limit, self._idle = max(limit, 1), idle
        self._known: OrderedDict[Key, Binding] = OrderedDict()
        self.context: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: Key, now: float) -> Binding | None:
        self._expire(now)
        return self._known.get(key)

    def bind(self, key: Key, replica: str, tokens: int, now: float) -> None:
        before = self._known.pop(key, None)
        if before is not None:
            self._count(before.replica, -before.tokens)
            tokens = max(tokens, before.tokens)
        self._known[key] = Binding(replica, tokens, now)
        self._count(replica, tokens)
        if len(self._known) > self._limit:
            self._forget()
        self._expire(now)

    def _expire(self, now: float) -> None:
        while self._known and next(iter(self._known.values())).used < now - self._idle:
            self._forget()

    def _forget(self) -> None:
        _, binding = self._known.popitem(last=False)
        self._count(binding.replica, -binding.tokens)

    def _count(self, replica: str, tokens: int) -> None:
        left = self.context.get(replica, 0) + tokens
        if left:
            self.context[replica] = left
        else:
            self.context.pop(replica, None)
