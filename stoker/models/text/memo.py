"""Tokens of texts that came before. An agent sends its whole history again each turn: only what is new in it need be
cut into tokens.

Owners never find each other's texts, so nobody learns from the time it takes what somebody else has sent. Of a text a
digest is kept, and its tokens.
"""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b

MAX_BYTES = 32 << 20  # of ids, four bytes each, and what a text costs beside them
PER_TEXT = 256
LONG = 256  # characters; shorter texts are encoded about as fast as they are found

Encode = Callable[[list[str]], Sequence[Sequence[int]]]
Known = Callable[[Sequence[str], Encode], Sequence[Sequence[int]]]
"""Gives what the function would give for each text by itself, from memory where it can."""


def nothing_known(texts: Sequence[str], encode: Encode) -> Sequence[Sequence[int]]:
    """No memory: a `Known` for texts that may not be remembered."""
    return encode([*texts])


class Memo:
    """The longest unused go first. Safe for several threads."""

    def __init__(self, size: int = MAX_BYTES) -> None:
        self._limit = size
        self._known: OrderedDict[bytes, array[int]] = OrderedDict()
        self._held = 0
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes held."""
        return self._held

    def encode(self, owner: str, texts: Sequence[str], encode: Encode) -> list[Sequence[int]]:
        """What `encode` gives for each text by itself; it is asked only for those that `owner` did not have before."""
        keys = [_key(owner, text) if len(text) >= LONG else None for text in texts]
        with self._lock:
            known = [None if key is None else self._find(key) for key in keys]
        made = iter(encode([text for text, ids in zip(texts, known, strict=True) if ids is None]))
        found: list[Sequence[int]] = []
        for key, ids in zip(keys, known, strict=True):
            if ids is not None:
                found.append(ids)
                continue
            found.append(next(made))
            if key is not None:
                self._keep(key, array("I", found[-1]))
        return found

    def _find(self, key: bytes) -> array[int] | None:
        ids = self._known.get(key)
        if ids is not None:
            self._known.move_to_end(key)
        return ids

    def _keep(self, key: bytes, ids: array[int]) -> None:
        with self._lock:
            if key in self._known or _size(ids) > self._limit:
                return
            self._known[key] = ids
            self._held += _size(ids)
            while self._held > self._limit:
                self._held -= _size(self._known.popitem(last=False)[1])


def _size(ids: array[int]) -> int:
    return PER_TEXT + len(ids) * ids.itemsize


def _key(owner: str, text: str) -> bytes:
    name = owner.encode()
    return blake2b(len(name).to_bytes(8, "little") + name + text.encode(), digest_size=16).digest()
