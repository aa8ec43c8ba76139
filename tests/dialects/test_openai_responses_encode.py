from __future__ import annotations

import json

from event_scripts import scripts
from hypothesis import given
from stream_checks import check_responses

from stoker.dialects.encoder import Head
from stoker.dialects.openai_responses import decode_responses, with_history
from stoker.dialects.openai_responses_encode import ResponsesStream, ResponsesWhole
from stoker.dialects.openai_responses_input import unseal
from stoker.types.chat import Begun, ReasoningDelta, TextDelta, ToolCallDone
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.usage import Usage

HEAD = Head(id="resp_0123", created=5, model='m"', fingerprint="fp")


def request(**body):
    return decode_responses({"model": "m", "input": "Hi"} | body, session=None)


def play(asked, events):
    stream, whole = ResponsesStream(asked, HEAD), ResponsesWhole(asked, HEAD)
    chunks = []
    for event in events:
        chunks += [json.loads(data) for data in stream.push(event)]
        whole.push(event)
    assert stream.blocks.message == whole.blocks.message
    return chunks, json.loads(whole.finish()), whole.blocks.message


@given(scripts())
def test_stream_and_whole_answer_say_the_same(events):
    asked = request(tools=[{"type": "web_search"}], metadata={"a": "b"}, instructions="Be kind.", store=False)
    chunks, answer, message = play(asked, events)
    final = check_responses(chunks)
    assert final == answer
    assert (answer["id"], answer["object"], answer["created_at"], answer["model"]) == ("resp_0123", "response", 5, 'm"')
    assert answer["usage"] == {
        "input_tokens": 12,
        "input_tokens_details": {"cached_tokens": 7},
        "output_tokens": 14,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 26,
    }
    broken = any(isinstance(event, ToolCallDone) and not event.complete for event in events)
    cut = events[-2].reason == "length"
    assert broken <= cut
    assert answer["status"] == ("incomplete" if cut else "completed")
    assert answer["incomplete_details"] == ({"reason": "max_output_tokens"} if cut else None)
    assert (answer["metadata"], answer["instructions"], answer["store"]) == ({"a": "b"}, "Be kind.", False)
    assert answer["tools"] == [{"type": "web_search"}]
    texts = [part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"]]
    assert "".join(texts) == (message.content or "")
    calls = [item for item in answer["output"] if item["type"] == "function_call"]
    assert [(call["call_id"], call["arguments"]) for call in calls] == [(c.id, c.arguments) for c in message.tool_calls]


@given(scripts())
def test_an_answer_sent_back_is_the_turn_that_it_was(events):
    """However the client holds it: as text, or as what was sealed for it."""
    for include in ([], ["reasoning.encrypted_content"]):
        _, answer, message = play(request(include=include), events)
        output = answer["output"]
        if include:
            for item in output:
                if item["type"] == "reasoning":
                    del item["content"]
        again = with_history(request(input=[*output, {"role": "user", "content": "?"}]), ())
        if message.content or message.reasoning or message.tool_calls:
            assert again.messages[0] == message
        assert again.messages[-1].content == "?"


def test_reasoning_is_sealed_only_if_asked_for():
    events = [Begun(usage=Usage()), ReasoningDelta(index=0, text="hm ✓")]
    for include, sealed in (([], False), (["reasoning.encrypted_content"], True)):
        stream = ResponsesStream(request(include=include), HEAD)
        for event in events:
            stream.push(event)
        item = json.loads(stream.push(TextDelta(index=0, text="a"))[2])["item"]
        assert ("encrypted_content" in item) is sealed
        if sealed:
            assert unseal(item["encrypted_content"]) == "hm ✓"


def test_a_failure_is_the_last_event():
    stream = ResponsesStream(request(), HEAD)
    events = [*stream.push(Begun(usage=Usage())), *stream.push(TextDelta(index=0, text="a"))]
    failed = json.loads(stream.error(StokerError(ErrorKind.UNAVAILABLE, "engine_died", "The engine died.")))
    assert failed["type"] == "response.failed"
    assert failed["sequence_number"] == len(events)
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "engine_died", "message": "The engine died."}
