"""The hash chain of a prompt: the identity of its KV for engine, tiers and router alike.

Owns what goes into a key and how keys are linked. Does not own blocks (`blocks.py`) or who computes them.

Every engine page (16 tokens unless configured otherwise) has one 128-bit link that stands for the page *and all before
it*. Router and tiers speak of logical blocks of 64 tokens: with 16-token pages every fourth link is one. Links are
keyed, so that nobody without the key (it lives in the data folder, the same on all nodes) can construct a collision
or learn from a link what was asked; Python's `hash()` differs between processes and is never used.

The tokens of all images have one id. What tells images apart enters the chain with the page in which they begin.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from stoker.types.wire import ImageSpan

PAGE = 16
LOGICAL_BLOCK = 64
LINK_BYTES = 16
ID_BYTES = 4
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


@dataclass(frozen=True, slots=True)
class ChainScheme:
    """How every chain of one model is made, here and in its engines: the key of the installation, the fingerprint of
    model and tokenizer, and `page` tokens to a link (a divisor of `LOGICAL_BLOCK`)."""

    key: bytes = field(repr=False)
    fingerprint: str
    page: int = PAGE

    def root(self, *, domain: str, adapter: str = "") -> bytes:
        """The first parent of a prompt's links."""
        return ChainRoot(fingerprint=self.fingerprint, adapter=adapter, domain=domain).link(self.key)

    def extend(self, links: bytes, root: bytes, packed: bytes, images: Sequence[ImageSpan] = ()) -> bytes:
        """All links of the ids `packed`, among them those of `images`, end to end. `links` are those already known: of
        the first pages."""
        size, first = self.page * ID_BYTES, len(links) // LINK_BYTES
        rest = memoryview(packed)[first * size : len(packed) // size * size]
        marks = mark_pages(images, self.page)
        return links + b"".join(link_pages(self.key, links[-LINK_BYTES:] or root, rest, self.page, first, marks))

    def within(self, links: bytes, size: int) -> bytes:
        """Those of `links` whose pages lie within the first `size` bytes of the packed ids."""
        return links[: size // (self.page * ID_BYTES) * LINK_BYTES]

    def blocks(self, links: bytes) -> list[bytes]:
        """The names of the logical blocks that `links` (of a prompt, end to end) have in them, first to last."""
        step = LOGICAL_BLOCK // self.page * LINK_BYTES
        return [links[end - LINK_BYTES : end] for end in range(step, len(links) + 1, step)]


def pack(token_ids: Sequence[int]) -> bytes:
    """Ids as they enter the chain: four bytes each, lowest first. Raises OverflowError for what does not fit."""
    packed = array("I", token_ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def mark_pages(images: Sequence[ImageSpan], page: int) -> dict[int, bytes]:
    """By number of the page in which images begin, what they add to its link: of each its place there, its number of
    tokens and its digest. The pages after it need no more, since each link stands for all before it."""
    marks: dict[int, bytes] = {}
    for image in images:
        number, place = divmod(image.start, page)
        marks[number] = marks.get(number, b"") + pack((place, image.tokens)) + image.digest
    return marks


def link_pages(
    key: bytes, parent: bytes, packed: bytes | memoryview, page: int, first: int, marks: Mapping[int, bytes]
) -> Iterator[bytes]:
    """The links of the whole pages `packed`, one after another, of which the first has number `first`; `marks` are
    those of images. The only place where links are made."""
    size = page * ID_BYTES
    for number, at in enumerate(range(0, len(packed), size), start=first):
        data = parent + packed[at : at + size]
        if number in marks:
            data += marks[number]
        parent = blake2b(data, digest_size=LINK_BYTES, key=key).digest()
        yield parent


class Chain:
    """The links of one sequence, longer as its ids become known. Only full pages have a link.

    `links[i]` stands for the first `(i + 1) * page` token ids under the root. `known` are the links of its first pages
    if somebody has made them already, end to end; `images` are those of its prompt.
    """

    __slots__ = ("_key", "_marks", "_root", "links", "page")

    def __init__(
        self, root: ChainRoot, key: bytes, page: int = PAGE, known: bytes = b"", images: Sequence[ImageSpan] = ()
    ) -> None:
        self.page = page
        self.links = [known[at : at + LINK_BYTES] for at in range(0, len(known), LINK_BYTES)]
        self._key = key
        self._root = root.link(key)
        self._marks = mark_pages(images, page)

    def extend(self, token_ids: Sequence[int]) -> None:
        """Link the pages of `token_ids` (all ids of the sequence, from the first) that have become full.

        Raises OverflowError for an id below 0 or above 2**32 - 1.
        """
        first = len(self.links)
        start, full = first * self.page, len(token_ids) // self.page * self.page
        if start < full:
            parent, packed = self.links[-1] if self.links else self._root, pack(token_ids[start:full])
            self.links.extend(link_pages(self._key, parent, packed, self.page, first, self._marks))
