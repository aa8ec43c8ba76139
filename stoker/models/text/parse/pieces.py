"""Token ids -> the pieces that a parser reads: which of them are control tokens is known here, by id, and nowhere
after. Owns one output's detokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from stoker.models.text.parse.format import Format, Piece
from stoker.models.text.vocabulary import Vocabulary


def spelled_marks(vocabulary: Vocabulary, format: Format) -> frozenset[str]:
    """The format's markers that the vocabulary has no token for: a model can only spell them out."""
    return frozenset(format.marks).difference(token.content for token in vocabulary.added.values())


class PieceReader:
    """One output. Special tokens and the format's marks come as control pieces, everything else as text."""

    def __init__(self, vocabulary: Vocabulary, format: Format) -> None:
        self._detokenizer = vocabulary.detokenizer(skip_special=False)
        self._vocabulary = vocabulary
        self._format = format

    def push(self, ids: Sequence[int]) -> list[Piece]:
        """The pieces that are certain now that `ids` came; a character whose bytes are not all here yet waits, but not
        beyond a control token."""
        pieces: list[Piece] = []
        ordinary: list[int] = []
        for index in ids:
            control = self._control(index)
            if control is None:
                ordinary.append(index)
                continue
            text = self._detokenizer.push([*ordinary, index])
            ordinary.clear()
            pieces += ((text[: len(text) - len(control)], False), (control, True))
        pieces.append((self._detokenizer.push(ordinary), False))
        return [piece for piece in pieces if piece[0]]

    def finish(self) -> list[Piece]:
        """What still waits. Nothing may be pushed after it."""
        text = self._detokenizer.finish()
        return [(text, False)] if text else []

    def _control(self, index: int) -> str | None:
        token = self._vocabulary.added.get(index)
        if token is None or not (index in self._vocabulary.special or token.content in self._format.marks):
            return None
        return token.content
