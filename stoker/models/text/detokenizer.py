"""Token ids back to text, piece by piece: what all pushes return, joined, is what decoding the ids at once returns,
however they are cut. Invalid bytes become U+FFFD as in the tokenizers library, the reference for every rule here.

Two families: byte-level vocabularies, whose tokens are bytes in disguise, and SentencePiece ones with byte fallback.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tokenizers import Tokenizer

from stoker.models.source import ModelError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"


class Pieces:
    """What each id stands for. Looked up once per id and then kept: a vocabulary is never walked at start-up."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self.special = frozenset(index for index, token in added.items() if token.special)
        self._known: dict[int, bytes] = {}
        self._byte_tokens: set[int] = set()  # of those known
        steps = _decoder_steps(tokenizer)
        self.byte_level = [step["type"] for step in steps] == ["ByteLevel"]
        self.strip = 0 if self.byte_level else _leading_spaces(steps)

    def bytes(self, index: int) -> bytes:
        """The bytes of one token, b"" for an id that is none."""
        piece = self._known.get(index)
        if piece is None:
            token = self._tokenizer.id_to_token(index) if 0 <= index < 1 << 32 else None
            piece = b"" if token is None else _unmasked(token) if self.byte_level else _fallback(token)
            if token is not None:
                self._known[index] = piece
                if not self.byte_level and _BYTE_TOKEN.fullmatch(token):
                    self._byte_tokens.add(index)
        return piece

    def is_byte(self, index: int) -> bool:
        """Whether an id that `bytes` was asked for is a byte-fallback token, part of a character that has none of its
        own."""
        return index in self._byte_tokens


class Detokenizer(Protocol):
    """One output. Not for several threads at once."""

    def push(self, ids: Sequence[int]) -> str:
        """The text that is certain now that `ids` came; a character whose bytes are not all here yet waits."""
        ...

    def finish(self) -> str:
        """What still waits, U+FFFD for what never became a character. What is pushed later begins anew."""
        ...


class ByteLevelDetokenizer:
    def __init__(self, token_bytes: Callable[[int], bytes], skip: frozenset[int]) -> None:
        self._token_bytes = token_bytes
        self._skip = skip
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._whole = True  # no part of a character waits in the decoder

    def push(self, ids: Sequence[int]) -> str:
        data = b"".join([self._token_bytes(index) for index in ids if index not in self._skip])
        if self._whole:
            try:
                return data.decode()
            except UnicodeDecodeError:
                pass
        text = self._decoder.decode(data)
        self._whole = not self._decoder.getstate()[0]
        return text

    def finish(self) -> str:
        self._whole = True
        return self._decoder.decode(b"", final=True)


class FallbackDetokenizer:
    """A run of byte tokens is a text only as a whole: if any of it is invalid, each byte of the run is U+FFFD. So a run
    waits until another token ends it. Spaces the decoder takes off the front of an answer are taken off here too."""

    def __init__(self, pieces: Pieces, skip: frozenset[int]) -> None:
        self._pieces = pieces
        self._skip = skip
        self._run = bytearray()
        self._strip = pieces.strip

    def push(self, ids: Sequence[int]) -> str:
        text: list[str] = []
        for index in ids:
            if index in self._skip:
                continue
            piece = self._pieces.bytes(index)
            if self._pieces.is_byte(index):
                self._run += piece
            elif piece:
                text += (self._end_run(), piece.decode("utf-8"))
        return self._stripped("".join(text))

    def finish(self) -> str:
        return self._stripped(self._end_run())

    def _end_run(self) -> str:
        run, self._run = bytes(self._run), bytearray()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\N{REPLACEMENT CHARACTER}" * len(run)

    def _stripped(self, text: str) -> str:
        while self._strip and text.startswith(" "):
            text = text[1:]
            self._strip -= 1
        if text:
            self._strip = 0
        return text


def detokenizer(pieces: Pieces, *, skip_special: bool) -> Detokenizer:
    """`skip_special` leaves out the control tokens that the tokenizer marks as special."""
    skip: frozenset[int] = pieces.special if skip_special else frozenset()
    return ByteLevelDetokenizer(pieces.bytes, skip) if pieces.byte_level else FallbackDetokenizer(pieces, skip)


def _decoder_steps(tokenizer: Tokenizer) -> list[dict[str, Any]]:
    if tokenizer.decoder is None:
        raise ModelError("the tokenizer has no decoder: its tokens cannot be made into text")
    spec: dict[str, Any] = json.loads(tokenizer.decoder.__getstate__())
    return spec["decoders"] if spec["type"] == "Sequence" else [spec]


def _leading_spaces(steps: list[dict[str, Any]]) -> int:
    """How many spaces a SentencePiece decoder takes off the front. Raises ModelError for any other decoder."""
    strip = 0
    for place, step in enumerate(steps):
        match step:
            case {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "} if place == 0:
                pass
            case {"type": "ByteFallback"} | {"type": "Fuse"}:
                pass
            case {"type": "Strip", "content": " ", "start": int(count), "stop": 0} if (
                steps[place - 1]["type"] == "Fuse"
            ):
                strip = count
            case _:
                raise ModelError(f"the tokenizer's decoder has a step {step['type']!r} that is not supported")
    if not {"Replace", "ByteFallback", "Fuse"} <= {step["type"] for step in steps}:
        raise ModelError("the tokenizer's decoder is neither byte-level nor SentencePiece with byte fallback")
    return strip


def _byte_alphabet() -> dict[int, int]:
    """The 256 characters that stand for bytes in a byte-level vocabulary (GPT-2's): printable Latin-1 for itself, the
    rest, in order, from U+0100 on. Maps code point -> byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in set(printable)]
    return {byte: byte for byte in printable} | {0x100 + place: byte for place, byte in enumerate(hidden)}


_ALPHABET = _byte_alphabet()


def _unmasked(token: str) -> bytes:
    """A byte-level token's bytes; a token with a character outside the alphabet was added as plain text."""
    if any(ord(character) not in _ALPHABET for character in token):
        return token.encode("utf-8")
    return token.translate(_ALPHABET).encode("latin-1")


def _fallback(token: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(_SPACE, " ").encode("utf-8")
