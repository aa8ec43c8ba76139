from __future__ import annotations

import json

import pytest

from stoker.dialects.anthropic_messages import decode_count, decode_messages
from stoker.types.chat import Image, Message, SchemaOutput, Tool, ToolCall, ToolChoice
from stoker.types.errors import StokerError
from stoker.types.lane import Lane

USER = {"role": "user", "content": "Hi"}
F = {"name": "f", "description": "d", "input_schema": {"type": "object"}}


def decode(session=None, **body):
    return decode_messages({"model": "m", "max_tokens": 10, "messages": [USER]} | body, session=session)


def text(value: str, **more) -> dict:
    return {"type": "text", "text": value} | more


CACHED = {"cache_control": {"type": "ephemeral"}}


def test_what_a_coding_agent_sends():
    request = decode(
        max_tokens=32_000,
        system=[
            text("x-anthropic-billing-header: cc_version=2.1.197.1; cch=1f2e3;"),
            text("You are an agent.", **CACHED),
            text("Rules.", **CACHED),
        ],
        messages=[
            {"role": "user", "content": [text("<reminder>"), text("Go.", **CACHED)]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "msg_1"},
                    text("Rea"),
                    {"type": "tool_use", "id": "functions.f:0", "name": "f", "input": {"a": [1, "é"]}},
                    {"type": "tool_use", "id": "functions.f:1", "name": "f", "input": {}},
                    text("ding."),
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "functions.f:0", "content": "data", "is_error": False},
                    {"type": "tool_result", "tool_use_id": "functions.f:1", "content": [text("more"), text("yet")]},
                    text("On."),
                ],
            },
            {"role": "system", "content": [text("A reminder.")]},
            {"role": "assistant", "content": "Done."},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]},
        ],
        tools=[F, {"type": "web_search_20250305", "name": "web_search"}, {"type": "custom", "name": "g"}],
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        thinking={"type": "adaptive"},
        output_config={"effort": "high"},
        context_management={"edits": []},
        metadata={"user_id": json.dumps({"device_id": "d", "session_id": "ses"})},
        stream=True,
    )
    assert request.messages == (
        Message(role="system", content="You are an agent.\nRules."),
        Message(role="user", content="<reminder>\nGo."),
        Message(
            role="assistant",
            content="Reading.",
            reasoning="hm",
            tool_calls=(
                ToolCall(id="functions.f:0", name="f", arguments='{"a": [1, "é"]}'),
                ToolCall(id="functions.f:1", name="f", arguments="{}"),
            ),
        ),
        Message(role="tool", content="data", tool_call_id="functions.f:0"),
        Message(role="tool", content="more\nyet", tool_call_id="functions.f:1"),
        Message(role="user", content="On."),
        Message(role="system", content="A reminder."),
        Message(role="assistant", content="Done."),
        Message(role="tool", content="", tool_call_id="x"),
    )
    assert request.tools == (Tool(name="f", description="d", parameters={"type": "object"}), Tool(name="g"))
    assert request.tool_choice == ToolChoice(parallel=False)
    assert request.template_args == {"thinking": True, "enable_thinking": True, "reasoning_effort": "high"}
    assert (request.sampling.max_tokens, request.session, request.stream) == (32_000, "ses", True)


def test_a_note_that_changes_with_each_request_is_no_part_of_the_prompt():
    notes = [text(f"x-anthropic-billing-header: cch={number};") for number in range(2)]
    first, second = (decode(system=[note, text("You are.")]).messages for note in notes)
    assert first == second == (Message(role="system", content="You are."), Message(role="user", content="Hi"))
    assert decode(system=[notes[0]]).messages == decode().messages
    assert decode(system="You are.").messages == first


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ToolChoice()),
        ({"type": "auto"}, ToolChoice()),
        ({"type": "none"}, ToolChoice(mode="none")),
        ({"type": "any", "disable_parallel_tool_use": True}, ToolChoice(mode="required", parallel=False)),
        ({"type": "tool", "name": "f"}, ToolChoice(mode="required", names=("f",))),
    ],
)
def test_choices(given, expected):
    assert decode(tools=[F], tool_choice=given).tool_choice == expected


@pytest.mark.parametrize(
    ("given", "args", "budget"),
    [
        (None, {}, None),
        ({"type": "enabled", "budget_tokens": 2048}, {"thinking": True, "enable_thinking": True}, 2048),
        ({"type": "disabled"}, {"thinking": False, "enable_thinking": False}, None),
    ],
)
def test_thinking(given, args, budget):
    request = decode(thinking=given)
    assert (request.template_args, request.reasoning_budget) == (args, budget)


def test_the_rest():
    schema = {"type": "object"}
    request = decode(
        temperature=0.5,
        top_k=5,
        top_p=0.5,
        stop_sequences=["a", "", "b"],
        service_tier="priority",
        output_config={"format": {"type": "json_schema", "schema": schema}},
    )
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.top_p) == (0.5, 5, 0.5)
    assert request.stop == ("a", "b")
    assert (request.lane, request.service_tier) == (Lane.INTERACTIVE, "priority")
    assert request.response_format == SchemaOutput(schema=schema)


@pytest.mark.parametrize(
    "user", ["user_1", "{", '{"session_id": 5}', '{"session_id": ""}', "[" * 1000, '"s"', None, '{"other": "x"}']
)
def test_users_that_name_no_session(user):
    assert decode(metadata={"user_id": user}).session is None


def test_sessions():
    named = {"user_id": '{"session_id": "body"}'}
    assert decode(metadata=named).session == "body"
    assert decode(session="header", metadata=named).session == "header"


def test_documents_of_text_are_read():
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Words."}}
    assert decode(messages=[{"role": "user", "content": [document]}]).messages[0].content == "Words."


def test_counting_needs_no_limit():
    request = decode_count({"model": "m", "messages": [USER], "tools": [F], "system": "S"})
    assert [message.content for message in request.messages] == ["S", "Hi"]


def test_null_means_absent_and_unknown_is_ignored():
    names = ["system", "tools", "tool_choice", "thinking", "metadata", "stop_sequences", "stream", "temperature"]
    assert decode(**dict.fromkeys(names), who_knows=[1], container="c", inference_geo="eu") == decode()


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
LINK = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
VIDEO = {"type": "video", "source": {"type": "base64", "data": "x"}}


def test_images_in_turns_and_in_results():
    result = {"type": "tool_result", "tool_use_id": "t", "content": [text("see"), IMAGE]}
    turns = decode(messages=[{"role": "user", "content": [text("a"), text("b"), LINK, result, IMAGE]}]).messages
    link = Image("https://example.org/a.png", "messages[0].content[2]")
    inner = Image("data:image/png;base64,AAAA", "messages[0].content[3].content[1]")
    last = Image("data:image/png;base64,AAAA", "messages[0].content[4]")
    assert turns == (
        Message(role="user", content=("a\nb", link)),
        Message(role="tool", content=("see", inner), tool_call_id="t"),
        Message(role="user", content=(last,)),
    )


def source(**of: object) -> dict:
    return {"messages": [{"role": "user", "content": [{"type": "image", "source": of}]}]}


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"max_tokens": None}, "missing_required_parameter", "max_tokens"),
        ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": []}, "empty_array", "messages"),
        ({"messages": [5]}, "invalid_type", "messages[0]"),
        ({"messages": [USER] * 10_001}, "array_above_max_length", "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": [VIDEO]}]}, "unsupported_parameter", "messages[0].content[0]"),
        ({"messages": [{"role": "assistant", "content": [IMAGE]}]}, "unsupported_parameter", "messages[0].content[0]"),
        (source(type="file", file_id="x"), "unsupported_parameter", "messages[0].content[0].source"),
        (source(type="gopher"), "invalid_value", "messages[0].content[0].source.type"),
        (source(type="url"), "missing_required_parameter", "messages[0].content[0].source.url"),
        (source(type="base64", data="x"), "missing_required_parameter", "messages[0].content[0].source.media_type"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            "missing_required_parameter",
            "messages[0].content[0].tool_use_id",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [VIDEO]}]}
                ]
            },
            "unsupported_parameter",
            "messages[0].content[0].content[0]",
        ),
        ({"messages": [USER, {"role": "assistant", "content": "{"}]}, "unsupported_parameter", "messages[1]"),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f", "input": "{}"}]}
                ]
            },
            "invalid_type",
            "messages[0].content[0].input",
        ),
        ({"system": 5}, "invalid_type", "system"),
        ({"system": [IMAGE]}, "unsupported_parameter", "system[0]"),
        ({"tools": [{}]}, "missing_required_parameter", "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": "x"}]}, "invalid_type", "tools[0].input_schema"),
        ({"tool_choice": {"type": "any"}}, "invalid_value", "tool_choice"),
        ({"tool_choice": {}}, "missing_required_parameter", "tool_choice.type"),
        ({"tools": [F], "tool_choice": {"type": "tool", "name": "g"}}, "invalid_value", "tool_choice"),
        ({"stop_sequences": [5]}, "invalid_value", "stop_sequences[0]"),
        ({"stop_sequences": ["x" * 1025]}, "invalid_value", "stop_sequences[0]"),
        ({"service_tier": "best"}, "invalid_value", "service_tier"),
        ({"thinking": {"type": "often"}}, "invalid_value", "thinking.type"),
    ],
)
def test_refusals_name_the_parameter(body, code, param):
    with pytest.raises(StokerError) as failure:
        decode(**body)
    assert (failure.value.code, failure.value.param) == (code, param)


def test_inputs_of_calls_have_a_depth():
    nested: dict = {}
    for _ in range(40):
        nested = {"x": nested}
    call = {"type": "tool_use", "id": "x", "name": "f", "input": nested}
    with pytest.raises(StokerError) as failure:
        decode(messages=[{"role": "assistant", "content": [call]}, USER])
    assert failure.value.param == "messages[0].content[0].input"
