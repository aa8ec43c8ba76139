"""Conversations that clients refer to by the id of their last response, in memory only.

Owns bounds and who may see what: a conversation is only ever found with the tenant it was kept for. Knows no dialect.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from stoker.types.chat import Message

OVERHEAD = 256  # bytes counted for each turn, on top of its text


@dataclass(frozen=True, slots=True)
class _Kept:
    messages: tuple[Message, ...]
    size: int
    until: float


class Memory:
    """`limit()` bytes for each tenant, of which the oldest go first; nothing is given out after `seconds`.

    Sizes count a conversation's whole text, also where it shares turns with others: an upper bound.
    """

    def __init__(self, limit: Callable[[], int], seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit
        self._seconds = seconds
        self._clock = clock
        self._kept: dict[str, dict[str, _Kept]] = {}  # by tenant and response, oldest first
        self._sizes: dict[str, int] = {}

    def put(self, tenant: str, response: str, messages: tuple[Message, ...]) -> None:
        """Keep the conversation that ends with `response`, a new id. One above the limit is not kept."""
        now = self._clock()
        kept = _Kept(messages, sum(map(_size, messages)), now + self._seconds)
        limit = self._limit()
        if kept.size <= limit:
            self._kept.setdefault(tenant, {})[response] = kept
            self._sizes[tenant] = self._sizes.get(tenant, 0) + kept.size
        for owner, known in self._kept.items():
            while known:
                oldest = next(iter(known))
                if known[oldest].until >= now and self._sizes[owner] <= limit:
                    break
                self._sizes[owner] -= known.pop(oldest).size

    def get(self, tenant: str, response: str) -> tuple[Message, ...] | None:
        """None for what was never kept, was kept for another tenant, or is gone."""
        kept = self._kept.get(tenant, {}).get(response)
        return None if kept is None or kept.until < self._clock() else kept.messages


def _size(message: Message) -> int:
    size = OVERHEAD + len(message.text or "") + len(message.reasoning or "")
    size += sum(OVERHEAD + len(image.url) for image in message.images)
    return size + sum(OVERHEAD + len(call.name) + len(call.arguments) for call in message.tool_calls)
