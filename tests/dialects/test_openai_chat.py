from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.dialects.fields import depth_within
from stoker.dialects.openai_chat import decode_chat
from stoker.types.chat import Image, Message, Tool, ToolCall
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.lane import Lane
from stoker.types.sampling import SamplingParams

USER = {"role": "user", "content": "Hi"}
URL = {"url": "https://example.org/a.png"}
IMAGE = {"type": "image_url", "image_url": URL}


def decode(session=None, **body):
    return decode_chat({"model": "m", "messages": [USER]} | body, session=session)


def refused(**body) -> tuple[str, str | None]:
    with pytest.raises(StokerError) as failure:
        decode(**body)
    assert failure.value.kind is ErrorKind.INVALID
    return failure.value.code, failure.value.param


def test_defaults():
    request = decode()
    assert request.messages == (Message(role="user", content="Hi"),)
    assert request.sampling == SamplingParams()
    assert (request.n, request.stop, request.stream, request.lane) == (1, (), False, Lane.STANDARD)
    assert request.service_tier is None


def test_images_keep_their_places_among_the_texts():
    texts = [{"type": "text", "text": text} for text in "abc"]
    data = {"type": "image_url", "image_url": {"url": "data:image/png;base64, AAAA", "detail": "low"}}
    for role in ("user", "system", "tool"):
        message = {"role": role, "content": [*texts[:2], IMAGE, data, texts[2]], "tool_call_id": "t"}
        (found,) = decode(messages=[message]).messages
        first = Image("https://example.org/a.png", "messages[0].content[2]")
        second = Image("data:image/png;base64, AAAA", "messages[0].content[3]")
        assert found.content == ("a\nb", first, second, "c")
        assert (found.text, found.images) == ("a\nbc", (first, second))
    (found,) = decode(messages=[{"role": "user", "content": texts}]).messages
    assert (found.content, found.images) == ("a\nb\nc", ())


def test_everything_at_once():
    request = decode(
        temperature=0,
        top_p=0.5,
        top_k=-1,
        min_p=0.1,
        presence_penalty=-2,
        frequency_penalty=2,
        repetition_penalty=1.5,
        logit_bias={"5": -100, "6": 1.5},
        seed=-1,
        logprobs=True,
        top_logprobs=20,
        max_tokens=5,
        max_completion_tokens=7,
        min_tokens=2,
        stop=["a", "", "b"],
        stop_token_ids=[3],
        ignore_eos=True,
        n=16,
        stream=True,
        stream_options={"include_usage": True},
        service_tier="priority",
        prompt_cache_key="key",
        chat_template_kwargs={"enable_thinking": False},
    )
    assert request.sampling == SamplingParams(
        temperature=0.0,
        top_p=0.5,
        top_k=0,
        min_p=0.1,
        presence_penalty=-2.0,
        frequency_penalty=2.0,
        repetition_penalty=1.5,
        logit_bias={5: -100.0, 6: 1.5},
        seed=-1,
        logprobs=20,
        max_tokens=7,
        min_tokens=2,
        stop_ids=(3,),
        ignore_eos=True,
    )
    assert (request.n, request.stop, request.stream, request.include_usage) == (16, ("a", "b"), True, True)
    assert (request.lane, request.service_tier, request.session) == (Lane.INTERACTIVE, "priority", "key")
    assert request.template_args == {"enable_thinking": False, "thinking": False}


def test_null_means_absent():
    names = ["temperature", "top_p", "n", "stop", "stream", "stream_options", "tools", "tool_choice", "logit_bias"]
    names += [
        "response_format",
        "seed",
        "logprobs",
        "top_logprobs",
        "max_tokens",
        "service_tier",
        "modalities",
        "audio",
    ]
    assert decode(**dict.fromkeys(names)) == decode()


def test_unknown_and_irrelevant_parameters_are_ignored():
    ignored = {"store": True, "metadata": {"a": 1}, "user": "u", "safety_identifier": "s", "verbosity": "low"}
    ignored |= {"prediction": {"x": 1}, "who_knows": [1]}
    assert decode(**ignored) == decode()


RANGES = [
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("top_k", -1, 1 << 20),
    ("n", 1, 16),
    ("seed", -(1 << 63), (1 << 63) - 1),
    ("min_tokens", 0, (1 << 31) - 1),
]


@pytest.mark.parametrize(("name", "low", "high"), RANGES)
def test_ranges(name, low, high):
    decode(**{name: low})
    decode(**{name: high})
    step = 1 if isinstance(low, int) and abs(high) > 2 else 0.001
    step = 1 if name == "n" else step
    assert refused(**{name: low - step})[0].endswith("_below_min_value")
    assert refused(**{name: high + step})[0].endswith("_above_max_value")
    assert refused(**{name: 10**400})[0].endswith("_above_max_value")
    for wrong in ("1", True, [], {}):
        assert refused(**{name: wrong}) == ("invalid_type", name)


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"repetition_penalty": 0}, "decimal_below_min_value", "repetition_penalty"),
        ({"repetition_penalty": 2.1}, "decimal_above_max_value", "repetition_penalty"),
        ({"max_tokens": 0}, "integer_below_min_value", "max_tokens"),
        ({"max_completion_tokens": 1.5}, "invalid_type", "max_completion_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "integer_above_max_value", "min_tokens"),
        ({"top_logprobs": 21, "logprobs": True}, "integer_above_max_value", "top_logprobs"),
        ({"top_logprobs": 5}, "invalid_value", "top_logprobs"),
        ({"logit_bias": {str(i): 0 for i in range(1025)}}, "array_above_max_length", "logit_bias"),
        ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"²": 1}}, "invalid_value", "logit_bias"),
        ({"logit_bias": {"5": 101}}, "decimal_above_max_value", "logit_bias.5"),
        ({"logit_bias": {"5": None}}, "invalid_type", "logit_bias.5"),
        ({"stop": ["a"] * 17}, "array_above_max_length", "stop"),
        ({"stop": "a" * 1025}, "string_above_max_length", "stop"),
        ({"stop": [1]}, "invalid_type", "stop[0]"),
        ({"stop": 1}, "invalid_type", "stop"),
        ({"stop_token_ids": [1] * 65}, "array_above_max_length", "stop_token_ids"),
        ({"stop_token_ids": [-1]}, "invalid_value", "stop_token_ids"),
        ({"stop_token_ids": [True]}, "invalid_type", "stop_token_ids"),
        ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
        ({"stream": "yes"}, "invalid_type", "stream"),
        ({"service_tier": "best"}, "invalid_value", "service_tier"),
        ({"prompt_cache_key": "x" * 257}, "string_above_max_length", "prompt_cache_key"),
        ({"model": None}, "missing_required_parameter", "model"),
        ({"model": 5}, "invalid_type", "model"),
        ({"messages": None}, "missing_required_parameter", "messages"),
        ({"messages": []}, "empty_array", "messages"),
        ({"messages": "hi"}, "invalid_type", "messages"),
        ({"messages": [USER] * 10_001}, "array_above_max_length", "messages"),
        ({"messages": [USER, "hi"]}, "invalid_type", "messages[1]"),
        ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
        ({"messages": [{"role": "user", "content": 5}]}, "invalid_type", "messages[0].content"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "missing_required_parameter", "messages[0].tool_call_id"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
            "unsupported_parameter",
            "messages[0].content[0]",
        ),
        (
            {"messages": [USER, {"role": "assistant", "content": [{"type": "text", "text": "x"}, IMAGE]}]},
            "unsupported_parameter",
            "messages[1].content[1]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "missing_required_parameter",
            "messages[0].content[0].image_url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": 5}}]}]},
            "invalid_type",
            "messages[0].content[0].image_url.url",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": URL | {"detail": "best"}}]}]},
            "invalid_value",
            "messages[0].content[0].image_url.detail",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "type": "function"}]}]},
            "missing_required_parameter",
            "messages[0].tool_calls[0].function",
        ),
        ({"tools": [{"type": "function", "function": {}}]}, "missing_required_parameter", "tools[0].function.name"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
        ({"tools": [{}]}, "missing_required_parameter", "tools[0].type"),
        ({"tools": [{"type": "x"}] * 257}, "array_above_max_length", "tools"),
        ({"tool_choice": "sometimes"}, "invalid_value", "tool_choice"),
        ({"response_format": {"type": "yaml"}}, "invalid_value", "response_format.type"),
        ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
        ({"modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
        ({"audio": {"voice": "x"}}, "unsupported_parameter", "audio"),
        ({"functions": [{"name": "f"}]}, "unsupported_parameter", "functions"),
        ({"prompt_logprobs": 1}, "unsupported_parameter", "prompt_logprobs"),
        ({"chat_template_kwargs": {"messages": [USER]}}, "invalid_type", "chat_template_kwargs.messages"),
        ({"chat_template_kwargs": {str(i): 1 for i in range(65)}}, "array_above_max_length", "chat_template_kwargs"),
        ({"chat_template_kwargs": {"a": "x" * 257}}, "string_above_max_length", "chat_template_kwargs.a"),
    ],
)
def test_refusals_name_the_parameter(body, code, param):
    assert refused(**body) == (code, param)


def test_top_p_zero_keeps_only_the_likeliest():
    assert 0 < decode(top_p=0).sampling.top_p < 1e-6


def test_any_size_of_max_tokens_is_taken():
    assert decode(max_tokens=1 << 60).sampling.max_tokens == (1 << 31) - 1


@pytest.mark.parametrize(
    ("tier", "lane", "echoed"),
    [
        ("auto", Lane.STANDARD, "default"),
        ("default", Lane.STANDARD, "default"),
        ("flex", Lane.BATCH, "flex"),
        ("batch", Lane.BATCH, "batch"),
        ("priority", Lane.INTERACTIVE, "priority"),
    ],
)
def test_tiers(tier, lane, echoed):
    request = decode(service_tier=tier)
    assert (request.lane, request.service_tier) == (lane, echoed)


def test_the_session_of_the_headers_goes_first():
    assert decode(session="header", prompt_cache_key="body").session == "header"


def test_a_tool_loop():
    call = {"id": "functions.read:0", "type": "function", "function": {"name": "read", "arguments": '{"a": 1}'}}
    parsed = {"id": "c2", "function": {"name": "read", "arguments": {"b": 2}}}
    request = decode(
        messages=[
            {"role": "system", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "developer", "content": "three"},
            {"role": "user", "content": "", "name": "ann"},
            {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call, parsed]},
            {"role": "tool", "tool_call_id": "functions.read:0", "content": [{"type": "text", "text": "data"}]},
            {"role": "assistant", "content": None},
        ]
    )
    assert request.messages == (
        Message(role="system", content="one\ntwo"),
        Message(role="developer", content="three"),
        Message(role="user", content="", name="ann"),
        Message(
            role="assistant",
            reasoning="hm",
            tool_calls=(
                ToolCall(id="functions.read:0", name="read", arguments='{"a": 1}'),
                ToolCall(id="c2", name="read", arguments='{"b":2}'),
            ),
        ),
        Message(role="tool", content="data", tool_call_id="functions.read:0"),
        Message(role="assistant", content=""),
    )


TOOLS = [
    {"type": "web_search"},
    {
        "type": "function",
        "function": {"name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True},
    },
    {"type": "namespace", "name": "n"},
    {"type": "function", "function": {"name": "g"}},
]


@pytest.mark.parametrize("choice", [{}, {"tool_choice": "auto"}, {"tool_choice": None}])
def test_tools(choice):
    assert decode(tools=TOOLS, **choice).tools == (
        Tool(name="f", description="d", parameters={"type": "object"}, strict=True),
        Tool(name="g"),
    )


@given(st.recursive(st.integers(), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)))
def test_depth(value):
    def depth(item) -> int:
        items = item if isinstance(item, list) else item.values() if isinstance(item, dict) else None
        return 0 if items is None else 1 + max(map(depth, items), default=0)

    for limit in range(5):
        assert depth_within(value, limit) == (depth(value) <= limit)
