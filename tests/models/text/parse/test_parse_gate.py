"""The gate says what the parser does, at the very piece, and forgets what was rolled back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parse_cases import ID_CASES, TEXT_CASES, Case, format_for, from_ids, parser_of, tokens
from shared_data import needs_shared

from stoker.models.text.parse.format import FORMATS, Piece, StartState
from stoker.models.text.parse.gate import ReasoningGate
from stoker.types.chat import TextDelta, ToolCallStart


def gate_of(case: Case, *, control: bool) -> ReasoningGate:
    calls = bool(case["tools"]) and case["request"]["tool_choice"] != "none"
    return ReasoningGate(format_for(case), StartState(case["start_state"]), calls=calls, control_known=control)


def check(case: Case, pieces: list[Piece], *, control: bool) -> None:
    """Never over while the parser is in reasoning, and over from the piece on that ended it; `rest`, if it is not the
    beginning of a call, is the beginning of the content."""
    gate, parser = gate_of(case, control=control), parser_of(case, control_known=control)
    thought = parser.reasoning
    for text, known in pieces:
        was_over = gate.over
        events = parser.push([(text, known)])
        over = gate.feed((text, known))
        assert over == gate.over
        assert over or not was_over
        if not was_over:
            assert gate.thinking == parser.reasoning
            assert over == (thought and not parser.reasoning) or not thought
            if over and not known and not any(isinstance(event, ToolCallStart) for event in events):
                said = "".join(event.text for event in events if isinstance(event, TextDelta))
                assert gate.rest.strip().startswith(said.strip())
        thought = thought or parser.reasoning
        if any(isinstance(event, TextDelta | ToolCallStart) for event in events):
            assert gate.over


SHORT_CASES = [case for case in TEXT_CASES if len(case["raw_text"]) <= 2000]  # the long ones are not about reasoning


@needs_shared
@pytest.mark.parametrize("case", SHORT_CASES, ids=lambda case: case["id"])
def test_goldens(case: Case) -> None:
    for control in (False, True):
        check(case, tokens(case, control=control), control=control)
    check(case, [(letter, False) for letter in case["raw_text"]], control=False)
    check(case, [(case["raw_text"], False)], control=False)


@needs_shared
@pytest.mark.parametrize("case", ID_CASES, ids=lambda case: case["id"])
def test_token_ids(case: Case) -> None:
    pieces = [piece for push in from_ids(case, [[index] for index in case["raw_token_ids"]]) for piece in push]
    check(case, pieces, control=True)


@pytest.mark.parametrize(
    ("name", "start", "pieces", "at", "rest"),
    [
        ("glm47", "reasoning", ["a", "</think>", "{"], 1, ""),
        ("glm47", "reasoning", ["a", "</think>\n{", "x"], 1, "\n{"),
        ("glm47", "reasoning", ["a", "b <tool_call>now", "x"], 1, "<tool_call>now"),
        ("glm47", "reasoning", ["a", "</thi", "nk>{<"], 2, "{<"),
        ("hermes", "none", ["\n", "<think>", "a", "</think>", "{"], 3, ""),
        ("hermes", "none", ["\n", "{", "x"], 1, "{"),
        ("hermes", "none", ["<", "thin"], 2, None),
        ("hermes", "content", [], 0, ""),
        ("none", "reasoning", [], 0, ""),
        ("kimi_k25", "reasoning", ["<think>", "x", "<|tool_call_begin|>"], 2, "<|tool_call_begin|>"),
    ],
)
def test_where_it_opens(name: str, start: str, pieces: list[str], at: int, rest: str | None) -> None:
    gate = ReasoningGate(FORMATS[name], StartState(start), calls=True)
    seen = [gate.feed((piece, False)) for piece in pieces]
    assert seen == [place >= at for place in range(len(pieces))]
    if rest is not None:
        assert gate.over
        if pieces:
            again = ReasoningGate(FORMATS[name], StartState(start), calls=True)
            for piece in pieces[: at + 1]:
                again.feed((piece, False))
            assert again.rest == rest


def test_without_calls_a_tag_does_not_end_reasoning() -> None:
    gate = ReasoningGate(FORMATS["glm47"], StartState.REASONING, calls=False)
    assert not gate.feed(("<tool_call>", True))
    assert gate.thinking
    assert gate.feed(("</think>", True))


PARTS = st.lists(
    st.sampled_from(
        ["<", "<thi", "nk>", "<think>", "</think>", "</", "think>", "a", "\n", "<tool_call>", "<|im_end|>"]
    ),
    max_size=8,
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FORMATS)), st.sampled_from(StartState), PARTS, PARTS, PARTS)
def test_rollback_leaves_no_trace(name: str, start: StartState, before, rejected, after) -> None:
    def fed(gate: ReasoningGate, parts) -> list[tuple[bool, str, bool]]:
        return [(gate.feed((part, False)), gate.rest, gate.thinking) for part in parts]

    straight, rolled = (ReasoningGate(FORMATS[name], start, calls=True) for _ in range(2))
    fed(straight, before)
    fed(rolled, before)
    mark = rolled.snapshot()
    other = rolled.copy()
    fed(rolled, rejected)
    rolled.restore(mark)
    expected = fed(straight, after)
    assert fed(rolled, after) == expected
    assert fed(other, after) == expected
