"""Every published prompt, exact: its text, and for Kimi its token ids."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import needs_shared, read_lines
from text_models import BUILT_IN, GLM_TOKENS, text_model

from stoker.models.text.control import ControlTokens
from stoker.models.text.family import Family
from stoker.models.text.renderers import RENDERERS, render
from stoker.models.text.turns import from_body
from stoker.types.chat import ChatRequest, Message, Tool, ToolCall
from stoker.types.errors import StokerError

LINES = read_lines("render.jsonl")


@needs_shared
@pytest.mark.parametrize("line", LINES, ids=lambda line: line["id"])
def test_published_prompts(line: dict[str, Any]) -> None:
    pieces = render(Family(line["family"]), from_body(line))
    assert "".join(pieces) == line["text"]
    if "token_ids" in line:
        vocabulary = text_model(Family(line["family"])).vocabulary
        assert vocabulary.encode_parts(ControlTokens(vocabulary.added, ()).join(pieces)) == line["token_ids"]


@needs_shared
def test_every_family_with_a_renderer_has_goldens_and_no_other_has() -> None:
    assert set(RENDERERS) == set(BUILT_IN) == {Family(line["family"]) for line in LINES}


def everywhere(text: str) -> ChatRequest:
    """A conversation with `text` in every place that a client fills."""
    return ChatRequest(
        model="m",
        messages=(
            Message(role="system", content=text),
            Message(role="user", content=text, name=text or None),
            Message(
                role="assistant",
                content=text,
                reasoning=text,
                name=text or None,
                tool_calls=(ToolCall(id=text, name=text, arguments='{"a": 1}'),),
            ),
            Message(role="tool", content=text, tool_call_id=text, name=text or None),
            Message(role="user", content=text),
        ),
        tools=(
            Tool(
                name=text,
                description=text,
                parameters={
                    "type": "object",
                    "description": text,
                    "properties": {
                        text: {"type": "string", "description": text, "pattern": text, "default": text},
                        "e": {"enum": [text, 1]},
                        "r": {"$ref": f"#/$defs/{text}"},
                    },
                    "$defs": {text: {"type": "array", "items": {"description": text, "type": "string"}}},
                    "required": [text],
                },
            ),
        ),
        template_args={"reasoning_effort": text},
    )


KIMI_TOKENS = [
    "<|im_end|>",
    "<|im_user|>",
    "<|im_assistant|>",
    "<|im_system|>",
    "<|im_middle|>",
    "[BOS]",
    "[EOS]",
    "[EOT]",
    "[PAD]",
    "<think>",
    "</think>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|media_pad|>",
    "<|reserved_token_163600|>",
]
_token = st.sampled_from([*KIMI_TOKENS, *GLM_TOKENS])
INJECTED = st.lists(
    st.one_of(
        _token,
        _token.flatmap(lambda token: st.integers(0, len(token)).map(lambda cut: token[:cut])),
        _token.flatmap(lambda token: st.integers(0, len(token)).map(lambda cut: token[cut:])),
        st.sampled_from([" ", "\n", "\ud800", "\ufdd0", "functions.a:0", "</tools>"]),
        st.text(max_size=3),
    ),
    max_size=6,
).map("".join)


@needs_shared
@pytest.mark.parametrize("family", BUILT_IN)
@settings(max_examples=60, deadline=None)
@given(text=INJECTED)
def test_no_string_of_a_client_becomes_a_control_token(family: Family, text: str) -> None:
    """The control tokens of a prompt are those of the same conversation about nothing, but for an answer that is
    empty once it is trimmed, which has fewer words and no fewer tokens."""
    model = text_model(family)
    ids = model.render(everywhere(text))
    control = [index for index in ids if index in model.control_ids]
    assert (
        control == [index for index in model.render(everywhere("x")) if index in model.control_ids] or not text.strip()
    )
    assert model.decode(ids).count("\ud800") == 0


@pytest.mark.parametrize("family", BUILT_IN)
def test_arguments_of_any_kind(family: Family) -> None:
    """Kimi repeats the model's own text whatever it is; GLM has no form for what is not an object."""
    for arguments in ("[1]", "{broken", '"text"', "[" * 100_000, "{}", "", '{"a": {"b": [1.50, "\\u00e9", null]}}'):
        body = {
            "messages": [
                {"role": "user", "content": "q"},
                {"role": "assistant", "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": arguments}}]},
            ]
        }
        if family.startswith("kimi_"):
            assert arguments in "".join(render(family, from_body(body)))
        elif arguments in ("{}", ""):
            assert "f" in render(family, from_body(body))
        elif arguments.startswith('{"a"'):
            assert '{"b": [1.5, "é", null]}' in render(family, from_body(body))
        else:
            with pytest.raises(StokerError, match="not a JSON object") as caught:
                render(family, from_body(body))
            assert caught.value.code == "invalid_tool_arguments"


@pytest.mark.parametrize("family", BUILT_IN)
def test_what_cannot_be_shown_is_refused_and_not_dropped(family: Family) -> None:
    for kind in ("image", "video"):
        body = {"messages": [{"role": "user", "content": [{"type": f"{kind}_url"}, {"type": "text", "text": "see"}]}]}
        if family in (Family.KIMI_K2, Family.KIMI_K2_THINKING, Family.GLM45, Family.GLM47):
            with pytest.raises(StokerError, match=f"reads no {kind}"):
                render(family, from_body(body))
        else:
            assert kind in "".join(render(family, from_body(body)))


@pytest.mark.parametrize("family", BUILT_IN)
def test_deep_declarations_are_refused(family: Family) -> None:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(5000):
        schema = {"type": "object", "properties": {"a": schema}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    with pytest.raises(StokerError, match="nested too deeply"):
        render(family, from_body({"messages": [{"role": "user", "content": "q"}], "tools": tools}))
