"""What a vocabulary knows of a format's markers: which tokens are pieces of their own, and which markers have none."""

from __future__ import annotations

from stoker.models.text.parse.format import Format
from stoker.models.text.vocabulary import Vocabulary


def control_pieces(vocabulary: Vocabulary, format: Format) -> dict[int, str]:
    """Tokens that are control pieces for a parser, with their texts: special ones, and the format's markers."""
    return {
        index: token.content
        for index, token in vocabulary.added.items()
        if index in vocabulary.special or token.content in format.marks
    }


def spelled_marks(vocabulary: Vocabulary, format: Format) -> frozenset[str]:
    """The format's markers that the vocabulary has no token for: a model can only spell them out."""
    return frozenset(format.marks).difference(token.content for token in vocabulary.added.values())
