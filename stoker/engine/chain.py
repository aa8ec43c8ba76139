"""The hash chain of a prompt: the identity of its KV for engine, tiers and router alike.

Owns what goes into a key and how keys are linked. Does not own blocks (`blocks.py`) or who computes them.

Every engine page (16 tokens unless configured otherwise) has one 128-bit link that stands for the page *and all before
it*. Router and tiers speak of logical blocks of 64 tokens: with 16-token pages every fourth link is one. Links are
keyed, so that nobody without the key (it lives in the data folder, the same on all nodes) can construct a collision
or learn from a link what was asked; Python's `hash()` differs between processes and is never used.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

PAGE = 16
LOGICAL_BLOCK = 64
LINK_BYTES = 16
FORMAT = 1


class ChainRoot(msgspec.Struct, frozen=True, kw_only=True):
    """THE list of everything beside the token ids that decides whether KV may be shared. A new field goes here.

    format      version of this scheme
    fingerprint of model and tokenizer
    adapter     name and version of the adapter, "" for none
    domain      cache domain: who may share (set by the gateway, never by a client)
    """

    format: int = FORMAT
    fingerprint: str
    adapter: str = ""
    domain: str = ""

    def link(self, key: bytes) -> bytes:
        """The first parent: 16 bytes. `key` has 1..64 bytes."""
        if not key:
            raise ValueError("the hash chain needs a key: without one anybody can compute its links")
        # astuple + msgpack is unambiguous (every string carries its length) and follows the fields by itself.
        return blake2b(msgspec.msgpack.encode(msgspec.structs.astuple(self)), digest_size=LINK_BYTES, key=key).digest()


class Chain:
    """The links of one sequence, longer as its ids become known. Only full pages have a link.

    `links[i]` stands for the first `(i + 1) * page` token ids under the root.
    """

    __slots__ = ("_key", "_parent", "links", "page")

    def __init__(self, root: ChainRoot, key: bytes, page: int = PAGE) -> None:
        self.page = page
        self.links: list[bytes] = []
        self._key = key
        self._parent = root.link(key)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Link the pages of `token_ids` (all ids of the sequence, from the first) that have become full.

        Raises OverflowError for an id below 0 or above 2**32 - 1.
        """
        page = self.page
        start, full = len(self.links) * page, len(token_ids) // page * page
        if start == full:
            return
        packed = array("I", token_ids[start:full])
        if sys.byteorder == "big":
            packed.byteswap()
        data, size = memoryview(packed.tobytes()), page * packed.itemsize
        key, parent, add = self._key, self._parent, self.links.append
        for at in range(0, len(data), size):
            parent = blake2b(parent + data[at : at + size], digest_size=LINK_BYTES, key=key).digest()
            add(parent)
        self._parent = parent
