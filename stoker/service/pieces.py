"""Token ids -> what an output parser reads: text, and control tokens told apart from text that looks like them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stoker.models.text.detokenizer import Detokenizer
from stoker.models.text.parse.format import Piece


class PieceReader:
    """One output. `control` maps the ids that become pieces of their own to their texts; with none, all is text."""

    def __init__(self, detokenizer: Detokenizer, control: Mapping[int, str]) -> None:
        self._detokenizer = detokenizer
        self._control = control

    def push(self, ids: Sequence[int]) -> list[Piece]:
        """A character that a control token cut in two is broken, as it would be at the end."""
        pieces: list[Piece] = []
        for index in ids:
            name = self._control.get(index)
            if name is None:
                text = self._detokenizer.push((index,))
                if text:
                    pieces.append((text, False))
            else:
                pieces += (*self.finish(), (name, True))
        return pieces

    def finish(self) -> list[Piece]:
        text = self._detokenizer.finish()
        return [(text, False)] if text else []
