from __future__ import annotations

import pytest
from front_fakes import FakeText
from hypothesis import given
from hypothesis import strategies as st

from stoker.models.text.model import TextModel
from stoker.service.pieces import PieceReader

CONTROL = {300: "<a>", 301: "<b>"}


def read(ids, control) -> list[tuple[str, bool]]:
    reader = PieceReader(FakeText().detokenizer(), control)
    return [piece for index in ids for piece in reader.push((index,))] + reader.finish()


@given(st.lists(st.text("aé✓", max_size=3) | st.sampled_from([300, 301]), max_size=8))
def test_text_and_control_tokens_keep_their_order(parts):
    ids = [index for part in parts for index in (part.encode() if isinstance(part, str) else [part])]
    pieces = read(ids, CONTROL)
    assert "".join(text for text, _ in pieces) == "".join(CONTROL.get(part, part) for part in parts)
    assert [text for text, control in pieces if control] == [CONTROL[part] for part in parts if part in CONTROL]
    reader = PieceReader(FakeText().detokenizer(), CONTROL)
    assert [(text, control) for text, control in reader.push(ids) + reader.finish() if control] == [
        piece for piece in pieces if piece[1]
    ]


def test_half_a_character_before_a_control_token_is_broken():
    assert read([0xE2, 0x9C, 300, 97], CONTROL) == [("�", False), ("<a>", True), ("a", False)]


@pytest.mark.parametrize("text", ["tiny_text", "demo_text"])
def test_after_a_control_token_text_is_as_it_was(text, request):
    model: TextModel = request.getfixturevalue(text)
    end = min(model.eos_ids)
    words = model.encode(" one two")
    reader = PieceReader(model.detokenizer(), {end: "<end>"})
    pieces = reader.push([*words, end, *words]) + reader.finish()
    middle = pieces.index(("<end>", True))
    assert "".join(part for part, _ in pieces[:middle]) == "".join(part for part, _ in pieces[middle + 1 :])
