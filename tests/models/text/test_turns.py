"""Conversations from requests and from chat bodies: what is kept, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.models.text.turns import Call, Conversation, Media, Turn, from_body, from_request
from stoker.types.chat import ChatRequest, Message, Tool, ToolCall
from stoker.types.errors import StokerError


def test_a_request_and_its_body_are_the_same_conversation() -> None:
    request = ChatRequest(
        model="m",
        messages=(
            Message(role="developer", content="d", name="n"),
            Message(role="user", content=""),
            Message(role="assistant", reasoning="r", tool_calls=(ToolCall(id="i", name="f", arguments="{}"),)),
            Message(role="tool", content="out", tool_call_id="i"),
        ),
        tools=(Tool(name="f", description="d", parameters={"type": "object"}, strict=True), Tool(name="g")),
        template_args={"thinking": False, "add_generation_prompt": False},
    )
    body = {
        "messages": [
            {"role": "developer", "content": "d", "name": "n"},
            {"role": "user", "content": None},
            {
                "role": "assistant",
                "reasoning": "r",
                "tool_calls": [{"id": "i", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "content": ["out"], "tool_call_id": "i"},
        ],
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
            {"type": "function", "function": {"name": "g"}},
        ],
        "kwargs": {"thinking": False, "clear_thinking": True, "add_generation_prompt": True},
    }
    assert from_request(request, {"clear_thinking": True, "thinking": True}) == from_body(body)


def test_parts_keep_their_order_and_media_their_place() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "image_url"}, "b", {"type": "video_url"}, {"type": "image"}]
    (turn,) = from_body({"messages": [{"role": "user", "content": content}]}).turns
    assert turn.parts == ("a", Media.IMAGE, "b", Media.VIDEO, Media.IMAGE)
    assert turn.text == "ab"


def test_both_names_of_reasoning_are_read_and_an_empty_one_is_one() -> None:
    for given, read in (
        ({"reasoning_content": "r"}, "r"), ({"reasoning": "r"}, "r"), ({"reasoning_content": "", "reasoning": "r"}, ""),
        ({}, None), ({"reasoning": None}, None),
    ):  # fmt: skip
        (turn,) = from_body({"messages": [{"role": "assistant", **given}]}).turns
        assert turn == Turn(role="assistant", reasoning=read)


def test_arguments_are_text_or_an_object() -> None:
    for given, read in (("[1", "[1"), ({"a": 1}, {"a": 1}), (None, "{}")):
        call = {"function": {"name": "f", "arguments": given}}
        (turn,) = from_body({"messages": [{"role": "assistant", "tool_calls": [call]}]}).turns
        assert turn.calls == (Call("", "f", read),)


def test_the_first_switch_that_is_given_decides() -> None:
    conversation = Conversation((), (), {"a": None, "b": 0, "c": True})
    assert conversation.switch("a", "b", "c", default=True) is False
    assert conversation.switch("a", "c", default=False) is True
    assert conversation.switch("a", "d", default=True) is True


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": {}}, "messages"),
        ({"messages": [], "tools": {"a": 1}}, "tools"),
        ({"messages": [], "tools": ["f"]}, "tools"),
        ({"messages": [], "kwargs": "x"}, "kwargs"),
        ({"messages": ["hi"]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "name": 1}]}, "messages[0].name"),
        ({"messages": [{"role": "tool", "tool_call_id": 1}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": "f"}]}, "messages[0].tool_calls"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}]},
            "messages[0].tool_calls[0]",
        ),
    ],
)
def test_what_is_of_a_wrong_kind_is_named(body: dict[str, Any], param: str) -> None:
    with pytest.raises(StokerError) as caught:
        from_body(body)
    assert caught.value.param == param
