"""Images in the prompts of live requests: what the executor holds of each, and what must come before it is computed.

    told ── asked for ──> wanted ── pixels came ──> here ── encoded by a step ──> held ── forgotten ──> told

A prompt names its images; their pixels stay with the client until a step is about to need them. Images whose KV is in
the prefix cache are never asked for, which in a long conversation is nearly all of them. Features are kept after the
step that made them, least recently used first out: other sequences of the same cache domain may have the same image,
and a preempted one will need it again.

Owns the bytes of pixels and features and the order in which they go. Does not own sequences, and computes nothing.

Flaws: an image is encoded in one piece, so a step may take as long as the largest image; pixels of images that running
sequences need next have no bound but the number of those sequences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec

from stoker.types.plan import Encode, ImageAt
from stoker.types.wire import ImageSpan

AHEAD_BYTES = 64 << 20  # of pixels asked for before they are needed


class ImageLimits(msgspec.Struct, frozen=True, kw_only=True):
    """`token_bytes` of features for each token of an image; `memory` for all that are held; `step_tokens` of images
    that a step may encode. Where one image alone exceeds a bound it is taken alone."""

    token_bytes: int
    memory: int
    step_tokens: int


@dataclass(eq=False, slots=True)
class _Image:
    """`asked` is the request whose client was asked for the pixels and has not answered; `users` are live sequences."""

    number: int
    key: tuple[str, bytes]
    span: ImageSpan
    users: int = 0
    asked: str | None = None
    pixels: bytes | None = None
    held: bool = False

    @property
    def size(self) -> int:
        return self.span.height * self.span.width * 3


@dataclass(frozen=True, slots=True)
class Placed:
    """An image in a sequence: its tokens are [start, end)."""

    start: int
    end: int
    image: _Image


class Seeing(Protocol):
    """What must be known of a sequence."""

    @property
    def request(self) -> str: ...

    @property
    def images(self) -> tuple[Placed, ...]: ...

    @property
    def computed(self) -> int: ...


S = TypeVar("S", bound=Seeing)


class Images:
    """For one engine. `see` the chunks of each step; its plan then gets `encodes` and `forgets`. Without `limits` no
    sequence has images."""

    def __init__(self, limits: ImageLimits | None) -> None:
        self._limits = limits or ImageLimits(token_bytes=0, memory=0, step_tokens=0)
        self._known: dict[tuple[str, bytes], _Image] = {}
        self._held: OrderedDict[int, _Image] = (
            OrderedDict()
        )  # whose features the executor has, least recently used first
        self._next = 0
        self._ahead = 0  # bytes of pixels that are here or asked for
        self._asked: list[tuple[str, bytes]] = []
        self._used: set[int] = set()
        self._encoded = 0  # tokens, in this plan
        self.encodes: list[Encode] = []
        self.forgets: list[int] = []
        self.tokens = 0  # of all images that were encoded

    @property
    def held_bytes(self) -> int:
        return sum(image.span.tokens for image in self._held.values()) * self._limits.token_bytes

    def enter(self, domain: str, spans: Many[ImageSpan]) -> tuple[Placed, ...]:
        """The images of a new sequence; undone by `leave`."""
        placed: list[Placed] = []
        for span in spans:
            key = (domain, span.digest)
            image = self._known.get(key)
            if image is None:
                image = self._known[key] = _Image(self._next, key, span)
                self._next += 1
            image.users += 1
            placed.append(Placed(span.start, span.start + span.tokens, image))
        return tuple(placed)

    def leave(self, request: str, placed: Many[Placed]) -> None:
        """The sequence has ended. Whoever else needs what its client was asked for asks its own."""
        for place in placed:
            image = place.image
            image.users -= 1
            if image.asked == request:
                self._drop(image)
            if image.users == 0:
                self._drop(image)
                if not image.held:
                    self._known.pop(image.key, None)

    def see(self, chunks: Many[tuple[S, int]]) -> list[tuple[S, int]]:
        """(sequence, its next tokens) as far as a step can compute them: up to the first image whose pixels are not
        here. Those are asked for, and some of the images after them. The others are encoded if they must be."""
        self._used.clear()
        self._encoded = 0
        self.encodes, self.forgets = [], []
        seen: list[tuple[S, int]] = []
        for seq, count in chunks:
            if count := self._reach(seq, count):
                seen.append((seq, count))
        return seen

    def _reach(self, seq: Seeing, count: int) -> int:
        end = seq.computed + count
        for index, place in enumerate(seq.images):
            if place.end <= seq.computed:
                continue
            if place.start >= end:
                break
            if not self._use(place.image):
                self._ask(seq.request, seq.images[index:])
                return max(0, place.start - seq.computed)
        return count

    def asked(self) -> list[tuple[str, bytes]]:
        """(request, digest of an image whose pixels are wanted of its client), each once."""
        asked, self._asked = self._asked, []
        return asked

    def supply(self, digest: bytes, pixels: bytes) -> list[str]:
        """What a client sent, for every sequence that waits for it. Returns the requests to which it is of no use:
        other than so many bytes means that the client does not have the image."""
        waiting = [i for i in self._known.values() if i.span.digest == digest and i.asked is not None]
        useless: list[str] = []
        for image in waiting:
            if len(pixels) == image.size:
                image.asked, image.pixels = None, pixels
            elif image.asked is not None:
                useless.append(image.asked)
        return useless

    def _use(self, image: _Image) -> bool:
        """Its features are there, or will be before the batch of this step runs."""
        if image.held:
            self._held.move_to_end(image.number)
        elif image.pixels is None or not self._room(image):
            return False
        else:
            span = image.span
            self.encodes.append(Encode(image.number, span.height, span.width, image.pixels))
            self._encoded += span.tokens
            self.tokens += span.tokens
            self._drop(image)
            image.held = True
            self._held[image.number] = image
        self._used.add(image.number)
        return True

    def _room(self, image: _Image) -> bool:
        """Make place for its features, but for those that this step uses. The first of a step always gets it, so that
        somebody goes on."""
        tokens, limits = image.span.tokens, self._limits
        if self._encoded and self._encoded + tokens > limits.step_tokens:
            return False
        spare = limits.memory - self.held_bytes - tokens * limits.token_bytes
        for number, other in list(self._held.items()):
            if spare >= 0:
                break
            if number not in self._used:
                spare += other.span.tokens * limits.token_bytes
                self._forget(other)
        return spare >= 0 or not self._used

    def _forget(self, image: _Image) -> None:
        del self._held[image.number]
        image.held = False
        self.forgets.append(image.number)
        if image.users == 0:
            del self._known[image.key]

    def _ask(self, request: str, placed: Many[Placed]) -> None:
        """For the first, and for those after it while they fit."""
        for index, place in enumerate(placed):
            image = place.image
            if image.held or image.pixels is not None or image.asked is not None:
                continue
            if index and self._ahead + image.size > AHEAD_BYTES:
                return
            image.asked = request
            self._ahead += image.size
            self._asked.append((request, image.span.digest))

    def _drop(self, image: _Image) -> None:
        """Pixels that are here or on their way are not needed any more."""
        if image.pixels is not None or image.asked is not None:
            self._ahead -= image.size
            image.pixels = image.asked = None


def places(placed: Many[Placed]) -> list[ImageAt]:
    """As a plan tells of them."""
    return [ImageAt(place.image.number, place.start, place.end - place.start) for place in placed]
