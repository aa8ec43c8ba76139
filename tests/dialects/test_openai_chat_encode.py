from __future__ import annotations

import json

from event_scripts import scripts
from hypothesis import given

from stoker.dialects.encoder import Head
from stoker.dialects.openai_chat_encode import ChatStream, ChatWhole
from stoker.types.chat import (
    ChatRequest,
    ChoiceDone,
    Done,
    Message,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStart,
)
from stoker.types.sampling import SamplingParams
from stoker.types.usage import Usage

HEAD = Head(id="chatcmpl-1", created=5, model='m"\\', fingerprint="fp")
USER = (Message(role="user", content="Hi"),)


def request(**more) -> ChatRequest:
    return ChatRequest(model="m", messages=USER, **more)


def assemble(chunks, n):
    """What a client puts together from the chunks of a stream. Asserts what it may rely on."""
    choices = [{"content": "", "reasoning": "", "calls": [], "reason": None} for _ in range(n)]
    roles = [0] * n
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        (choice,) = chunk["choices"]
        made, delta = choices[choice["index"]], choice["delta"]
        assert made["reason"] is None
        roles[choice["index"]] += delta.pop("role", None) == "assistant"
        assert roles[choice["index"]] == 1
        made["content"] += delta.pop("content", "")
        made["reasoning"] += delta.pop("reasoning", "")
        delta.pop("reasoning_content", "")
        for call in delta.pop("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(made["calls"])
                assert call["function"]["arguments"] == ""
                assert call["type"] == "function"
                made["calls"].append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            made["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
            if "arguments_valid" in call:
                made["calls"][call["index"]]["arguments_valid"] = call["arguments_valid"]
        assert delta == {}
        made["reason"] = choice["finish_reason"]
    return choices


@given(scripts(choices=2))
def test_stream_and_whole_answer_say_the_same(events):
    asked = request(n=2, stream=True, include_usage=True, service_tier="flex")
    stream, whole = ChatStream(asked, HEAD), ChatWhole(asked, HEAD)
    chunks = []
    for event in events:
        chunks += [json.loads(data) for data in stream.push(event)]
        whole.push(event)
    answer = json.loads(whole.finish())
    broken = {(event.index, event.call) for event in events if isinstance(event, ToolCallDone) and not event.complete}
    for index, (streamed, choice) in enumerate(zip(assemble(chunks[:-1], 2), answer["choices"], strict=True)):
        message = choice["message"]
        assert streamed["content"] == (message["content"] or "")
        assert streamed["reasoning"] == message.get("reasoning", "") == message.get("reasoning_content", "")
        assert streamed["reason"] == choice["finish_reason"]
        for call in message.get("tool_calls", []):
            assert call.pop("type") == "function"
            call |= call.pop("function")
        whole_calls = [call for number, call in enumerate(streamed["calls"]) if (index, number) not in broken]
        assert whole_calls == message.get("tool_calls", [])
        assert (message["content"] is None) == (bool(whole_calls) and streamed["content"] == "")
    assert chunks[-1]["usage"] == answer["usage"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 7
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (12, 14)
    for name in ("id", "created", "model", "system_fingerprint", "service_tier"):
        assert {chunk[name] for chunk in chunks} == {answer[name]}
    assert answer["model"] == 'm"\\'


def test_logprobs():
    asked = request(sampling=SamplingParams(logprobs=1), stream=True)
    token = TokenLogprob(id=1, text=b"\xc3", logprob=-0.5, top=((2, b"x", -1.0),))
    expected = {
        "token": "�",
        "logprob": -0.5,
        "bytes": [195],
        "top_logprobs": [{"token": "x", "logprob": -1.0, "bytes": [120]}],
    }
    stream, whole = ChatStream(asked, HEAD), ChatWhole(asked, HEAD)
    event = TextDelta(index=0, text="", logprobs=(token,))
    chunk = json.loads(stream.push(event)[-1])
    assert chunk["choices"][0]["logprobs"] == {"content": [expected], "refusal": None}
    for each in (event, ChoiceDone(index=0, reason="stop"), Done(usage=Usage())):
        whole.push(each)
    assert json.loads(whole.finish())["choices"][0]["logprobs"] == {"content": [expected], "refusal": None}


def test_nothing_that_was_not_asked_for():
    asked = request(stream=True)
    chunk = json.loads(ChatStream(asked, HEAD).push(TextDelta(index=0, text="a"))[-1])
    assert "usage" not in chunk
    assert "service_tier" not in chunk
    assert chunk["choices"][0]["logprobs"] is None
    assert ChatStream(asked, HEAD).push(Done(usage=Usage())) == ()


def test_a_call_piece_by_piece():
    stream = ChatStream(request(stream=True), HEAD)
    events = [
        ReasoningDelta(index=0, text="hm"),
        ToolCallStart(index=0, call=0, id="functions.f:0", name="f"),
        ToolCallDelta(index=0, call=0, arguments='{"a":'),
        ToolCallDelta(index=0, call=0, arguments="1}"),
        ToolCallDone(index=0, call=0),
        ChoiceDone(index=0, reason="tool_calls"),
    ]
    choices = [json.loads(data)["choices"][0] for event in events for data in stream.push(event)]
    assert [choice["delta"] for choice in choices] == [
        {"role": "assistant", "content": ""},
        {"reasoning": "hm", "reasoning_content": "hm"},
        {
            "tool_calls": [
                {"index": 0, "id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {},
    ]
    assert [choice["finish_reason"] for choice in choices] == [None] * 5 + ["tool_calls"]
