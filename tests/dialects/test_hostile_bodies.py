"""Whatever is in a body: it is read or refused with the name of a field, in no time, by every dialect."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.dialects.anthropic_messages import decode_count, decode_messages
from stoker.dialects.openai_chat import decode_chat
from stoker.dialects.openai_completions import decode_completion
from stoker.dialects.openai_responses import decode_responses
from stoker.types.errors import ErrorKind, StokerError

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
BODIES: dict[Any, dict[str, Any]] = {
    decode_chat: {
        "model": "m",
        "messages": [
            {
                "role": "user",
                "content": [{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:,x"}}],
            },
            {
                "role": "assistant",
                "content": None,
                "reasoning": "hm",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "y"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"name": "f"}]}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}},
        "thinking": {"type": "enabled", "budget_tokens": 5, "keep": "all"},
        "reasoning": {"effort": "low", "max_tokens": 4},
        "chat_template_kwargs": {"enable_thinking": True},
        "stop": ["a"],
        "logit_bias": {"1": 2},
        "stream_options": {"include_usage": True},
        "stream": True,
    },
    decode_completion: {"model": "m", "prompt": [[1, 2], "x"], "stop": "a", "logprobs": 1},
    decode_responses: {
        "model": "m",
        "input": [
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "x"}, {"type": "input_image", "image_url": "y"}],
            },
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "y"}]},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}, {"type": "namespace", "name": "n"}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
        "reasoning": {"effort": "low", "summary": "auto"},
        "include": ["reasoning.encrypted_content"],
        "metadata": {"a": "b"},
        "previous_response_id": "resp_1",
    },
    decode_messages: {
        "model": "m",
        "max_tokens": 5,
        "system": [{"type": "text", "text": "s"}],
        "messages": [
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "x"},
                    {"type": "tool_use", "id": "c", "name": "f", "input": {"a": "b"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "y"}]},
                    {"type": "document", "source": {"type": "text", "data": "z"}},
                    {"type": "image", "source": {"type": "url", "url": "https://x"}},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}},
                ],
            },
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "f"},
        "thinking": {"type": "enabled", "budget_tokens": 5},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": SCHEMA}},
        "stop_sequences": ["a"],
        "metadata": {"user_id": '{"session_id": "s"}'},
    },
}

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
ODD = st.sampled_from(
    [[], {}, [[]], [{}], "", -1, 1 << 70, 1e308, "\x00", "x" * 300, {"type": "text"}, [None], {"": 1}]
)
VALUES = SCALARS | ODD | st.lists(SCALARS, max_size=3) | st.dictionaries(st.text(max_size=4), SCALARS, max_size=3)


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [pair for key, item in items for pair in [(value, key), *places(item)]]


def read(decode: Any, body: Any) -> None:
    try:
        decode(body, session=None)
    except StokerError as refusal:
        failure = refusal
    else:
        return
    assert failure.kind is ErrorKind.INVALID
    assert failure.param


@pytest.mark.parametrize("decode", BODIES)
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_in_any_place(decode, data):
    body = copy.deepcopy(BODIES[decode])
    decode(copy.deepcopy(body), session=None)
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(body)))
        container[key] = copy.deepcopy(data.draw(VALUES))  # what is drawn may be drawn again, and is changed here
    read(decode, body)


def deep(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"properties": {"x": value}}
    return value


@pytest.mark.parametrize("decode", BODIES)
def test_depth_in_any_place(decode):
    """As deep as JSON is read at all."""
    for place in range(len(places(BODIES[decode]))):
        body = copy.deepcopy(BODIES[decode])
        container, key = places(body)[place]
        container[key] = deep(400)
        read(decode, body)


LONG: dict[Any, dict[str, Any]] = {
    decode_chat: {"model": "m", "messages": [{"role": "user", "content": "x"}] * 10_000},
    decode_responses: {
        "model": "m",
        "input": [{"type": "function_call", "call_id": "c", "name": "f"}] * 10_000
        + [{"role": "assistant", "content": "x"}] * 10_000,
    },
    decode_messages: {
        "model": "m",
        "max_tokens": 1,
        "messages": [
            {"role": "assistant", "content": [{"type": "text", "text": "x"}] * 4_096},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "y"}] * 4_096},
        ],
    },
}


@pytest.mark.parametrize("decode", LONG)
def test_long_conversations_take_time_in_proportion(decode):
    began = time.perf_counter()
    decode(LONG[decode], session=None)
    assert time.perf_counter() - began < 2.0  # a tenth of it on a quiet machine


def test_counting_reads_what_answering_reads():
    body = copy.deepcopy(BODIES[decode_messages])
    del body["max_tokens"]
    assert decode_count(body).messages == decode_messages(BODIES[decode_messages], session=None).messages
