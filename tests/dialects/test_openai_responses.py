from __future__ import annotations

import pytest

from stoker.dialects.openai_responses import decode_responses, with_history
from stoker.dialects.openai_responses_input import seal, unseal
from stoker.types.chat import Image, Message, SchemaOutput, Tool, ToolCall, ToolChoice
from stoker.types.errors import StokerError
from stoker.types.lane import Lane

USER = {"role": "user", "content": "Hi"}
IMAGE = {"type": "input_image", "image_url": "https://example.org/a.png", "detail": "auto"}
F = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}


def decode(session=None, **body):
    return decode_responses({"model": "m", "input": "Hi"} | body, session=session)


def test_a_string_is_a_users_turn():
    request = decode()
    assert request.messages == (Message(role="user", content="Hi"),)
    assert (request.store, request.sealed, request.previous, request.stream) == (True, False, None, False)
    assert request.sampling.max_tokens is None


def test_images_in_messages_and_in_outputs():
    call = {"type": "function_call", "call_id": "c", "name": "view_image"}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "see"}, IMAGE]}
    request = decode(input=[{"role": "user", "content": [IMAGE, {"type": "input_text", "text": "?"}]}, call, output])
    first = Image("https://example.org/a.png", "input[0].content[0]")
    second = Image("https://example.org/a.png", "input[2].output[1]")
    assert [message.content for message in request.messages] == [(first, "?"), None, ("see", second)]


def test_what_a_coding_agent_sends():
    request = decode(
        instructions="You are an agent.",
        input=[
            {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Rules."}]},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Go."}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": seal("hm")},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Reading."}]},
            {"type": "function_call", "call_id": "functions.f:0", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "functions.f:1", "name": "f", "arguments": ""},
            {"type": "function_call_output", "call_id": "functions.f:0", "output": "data"},
            {
                "type": "function_call_output",
                "call_id": "functions.f:1",
                "output": [{"type": "input_text", "text": "more"}],
            },
        ],
        tools=[
            F,
            {"type": "namespace", "name": "n", "tools": [F]},
            {"type": "web_search"},
            {"type": "custom", "name": "p"},
        ],
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"effort": "low", "summary": "auto"},
        store=False,
        stream=True,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="uuid",
        client_metadata={"x": "y"},
        text={"verbosity": "medium"},
    )
    assert with_history(request, ()).messages == (
        Message(role="system", content="You are an agent."),
        Message(role="developer", content="Rules."),
        Message(role="user", content="Go."),
        Message(
            role="assistant",
            content="Reading.",
            reasoning="hm",
            tool_calls=(
                ToolCall(id="functions.f:0", name="f", arguments='{"a": 1}'),
                ToolCall(id="functions.f:1", name="f", arguments="{}"),
            ),
        ),
        Message(role="tool", content="data", tool_call_id="functions.f:0"),
        Message(role="tool", content="more", tool_call_id="functions.f:1"),
    )
    assert request.tools == (Tool(name="f", parameters={"type": "object"}, strict=True),)
    assert request.template_args == {"reasoning_effort": "low"}
    assert (request.store, request.sealed, request.stream, request.session) == (False, True, True, "uuid")
    assert request.response_format is None


def test_what_went_before_stands_between_instructions_and_input():
    earlier = (Message(role="user", content="a"), Message(role="assistant", content="b"))
    request = with_history(decode(instructions="I.", previous_response_id="resp_1"), earlier)
    assert [message.content for message in request.messages] == ["I.", "a", "b", "Hi"]


def test_answers_in_a_row_stay_apart_but_what_was_cut_by_a_call_joins():
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}

    def said(text: str) -> dict:
        return {"role": "assistant", "content": text}

    assert [m.content for m in decode(input=[said("a"), said("b"), USER]).messages] == ["a", "b", "Hi"]
    (turn,) = decode(input=[said("a"), call, said("b")]).messages
    assert (turn.content, len(turn.tool_calls)) == ("ab", 1)


def test_items_of_other_servers_are_left_out():
    foreign = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "gAAAA"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "custom_tool_call", "call_id": "c", "name": "p", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "y"},
    ]
    assert decode(input=[USER, *foreign, USER]).messages == (Message(role="user", content="Hi"),) * 2


@pytest.mark.parametrize("text", ["", "hm", "naïve ✓\n"])
def test_seals(text):
    assert unseal(seal(text)) == text
    assert unseal("x" + seal(text)) is None
    assert unseal(seal(text) + "!") is None


def test_the_rest():
    schema = {"type": "object"}
    request = decode(
        max_output_tokens=7,
        temperature=0.5,
        top_p=0.25,
        service_tier="flex",
        tools=[F],
        tool_choice={"type": "function", "name": "f"},
        text={"format": {"type": "json_schema", "name": "x", "schema": schema}},
        reasoning={"effort": "none"},
        metadata={"k": "v"},
        previous_response_id="resp_1",
    )
    assert (request.sampling.max_tokens, request.sampling.temperature, request.sampling.top_p) == (7, 0.5, 0.25)
    assert (request.lane, request.service_tier) == (Lane.BATCH, "flex")
    assert request.tool_choice == ToolChoice(mode="required", names=("f",))
    assert request.response_format == SchemaOutput(schema=schema)
    assert request.template_args == {"thinking": False, "enable_thinking": False}
    assert request.previous == "resp_1"
    assert request.echo["max_output_tokens"] == 7
    assert request.echo["tools"] == [F]
    assert request.echo["metadata"] == {"k": "v"}


def test_too_much_is_not_repeated():
    tools = [{"type": "function", "name": f"f{i}", "description": "x" * 20_000} for i in range(100)]
    request = decode(tools=tools)
    assert len(request.tools) == 100
    assert request.echo["tools"] == []


def test_null_means_absent_and_unknown_is_ignored():
    names = ["instructions", "tools", "tool_choice", "reasoning", "text", "include", "store", "metadata", "stream"]
    assert decode(**dict.fromkeys(names), user="u", truncation="auto", who_knows=[1]) == decode()


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"input": None}, "missing_required_parameter", "input"),
        ({"input": 5}, "invalid_type", "input"),
        ({"input": []}, "empty_array", "input"),
        ({"input": [5]}, "invalid_type", "input[0]"),
        ({"input": [USER] * 20_001}, "array_above_max_length", "input"),
        ({"input": [{"content": "x"}]}, "missing_required_parameter", "input[0].role"),
        ({"input": [{"role": "tool", "content": "x"}]}, "invalid_value", "input[0].role"),
        ({"input": [{"role": "user"}]}, "missing_required_parameter", "input[0].content"),
        ({"input": [{"role": "user", "content": 5}]}, "invalid_type", "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]},
            "unsupported_parameter",
            "input[0].content[0]",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}]},
            "unsupported_parameter",
            "input[0].content[0].file_id",
        ),
        (
            {"input": [{"role": "assistant", "content": [IMAGE]}]},
            "unsupported_parameter",
            "input[0].content",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "missing_required_parameter", "input[0].call_id"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c"}]},
            "missing_required_parameter",
            "input[0].output",
        ),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "unsupported_parameter", "input[0]"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "empty_array", "input"),
        ({"background": True}, "unsupported_parameter", "background"),
        ({"conversation": "c"}, "unsupported_parameter", "conversation"),
        ({"prompt": {"id": "p"}}, "unsupported_parameter", "prompt"),
        ({"top_logprobs": 2}, "unsupported_parameter", "top_logprobs"),
        ({"include": ["message.output_text.logprobs"]}, "unsupported_parameter", "include"),
        ({"tools": [{}]}, "missing_required_parameter", "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].name"),
        ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type"),
        ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
        ({"metadata": {str(i): "x" for i in range(17)}}, "array_above_max_length", "metadata"),
        ({"max_output_tokens": 0}, "integer_below_min_value", "max_output_tokens"),
        ({"previous_response_id": 5}, "invalid_type", "previous_response_id"),
    ],
)
def test_refusals_name_the_parameter(body, code, param):
    with pytest.raises(StokerError) as failure:
        decode(**body)
    assert (failure.value.code, failure.value.param) == (code, param)
