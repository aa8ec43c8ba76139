from __future__ import annotations

import json

import pytest
from event_scripts import scripts
from hypothesis import given
from stream_checks import check_messages

from stoker.dialects.anthropic_encode import MessagesStream, MessagesWhole
from stoker.dialects.anthropic_messages import decode_messages
from stoker.dialects.encoder import Head
from stoker.types.chat import Begun, ChoiceDone, Done, TextDelta, ToolCallDelta, ToolCallDone, ToolCallStart
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.usage import Usage

HEAD = Head(id="msg_0123", created=5, model='m"', fingerprint="fp")


def request(**body):
    return decode_messages(
        {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]} | body, session=None
    )


def play(events, **body):
    stream, whole = MessagesStream(request(**body), HEAD), MessagesWhole(request(**body), HEAD)
    chunks = []
    for event in events:
        chunks += [json.loads(data) for data in stream.push(event)]
        whole.push(event)
    return chunks, json.loads(whole.finish())


@given(scripts())
def test_stream_and_whole_answer_say_the_same(events):
    chunks, answer = play(events)
    message = check_messages(chunks)
    broken = any(isinstance(event, ToolCallDone) and not event.complete for event in events)
    if broken:
        assert message["content"].pop()["type"] == "tool_use"
    for streamed, block in zip(message["content"], answer["content"], strict=True):
        if block["type"] == "tool_use" and "arguments" in block:  # they are no JSON object
            assert streamed["input"] == block["arguments"]
            assert (block["input"], block["arguments_valid"]) == ({}, False)
        elif block["type"] == "tool_use":
            assert streamed.pop("arguments_valid")
            assert json.loads(streamed["input"]) == block["input"]
        else:
            assert streamed == block
    assert {key: message[key] for key in message.keys() - {"content"}} == {
        key: answer[key] for key in answer.keys() - {"content"}
    }
    cut = events[-2].reason
    assert answer["stop_reason"] == {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use"}[cut]
    assert answer["usage"] == {
        "input_tokens": 5,
        "cache_read_input_tokens": 7,
        "cache_creation_input_tokens": 0,
        "output_tokens": 14,
        "output_tokens_details": {"thinking_tokens": 3},
        "service_tier": "standard",
    }


@pytest.mark.parametrize("arguments", ['{"a": [1.5, 123456789012345678901234567890]}', "{}"])
def test_arguments_keep_their_numbers(arguments):
    events = [
        ToolCallStart(index=0, call=0, id="functions.f:0", name="f"),
        ToolCallDelta(index=0, call=0, arguments=arguments),
        ToolCallDone(index=0, call=0),
        ChoiceDone(index=0, reason="tool_calls"),
        Done(usage=Usage()),
    ]
    _, answer = play(events)
    assert answer["content"] == [
        {"type": "tool_use", "id": "functions.f:0", "name": "f", "input": json.loads(arguments)}
    ]


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
def test_which_stop_sequence_it_was(reason):
    events = [
        Begun(usage=Usage()),
        TextDelta(index=0, text="a"),
        ChoiceDone(index=0, reason=reason, stop="END"),
        Done(usage=Usage()),
    ]
    chunks, answer = play(events, service_tier="batch")
    expected = "stop_sequence" if reason == "stop" else "tool_use"
    for ends in (chunks[-2]["delta"], answer):
        assert (ends["stop_reason"], ends["stop_sequence"]) == (expected, "END")
    assert answer["usage"]["service_tier"] == "batch"


def test_a_failure_is_an_event():
    stream = MessagesStream(request(), HEAD)
    failed = json.loads(stream.error(StokerError(ErrorKind.CAPACITY, "overloaded", "Full.")))
    assert failed == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "Full.", "code": "overloaded", "param": None},
    }
