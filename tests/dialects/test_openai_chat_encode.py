from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from stoker.dialects.openai_chat_encode import ChatStream, ChatWhole
from stoker.dialects.openai_common import Head
from stoker.types.chat import ChatRequest, ChoiceDone, Done, Message, TextDelta, TokenLogprob
from stoker.types.sampling import SamplingParams
from stoker.types.usage import Usage

HEAD = Head(id="chatcmpl-1", created=5, model='m"\\', fingerprint="fp")
USER = (Message(role="user", content="Hi"),)


def request(**more) -> ChatRequest:
    return ChatRequest(model="m", messages=USER, **more)


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=8)), max_size=12))
def test_stream_and_whole_answer_say_the_same(pieces):
    asked = request(n=3, stream=True, include_usage=True, service_tier="flex")
    events = [TextDelta(index=index, text=text) for index, text in pieces]
    events += [ChoiceDone(index=index, reason="stop") for index in range(3)]
    events.append(Done(usage=Usage(input_uncached=1, input_cached=2, output_text=3, output_reasoning=4)))
    stream, whole = ChatStream(asked, HEAD), ChatWhole(asked, HEAD)
    chunks = []
    for event in events:
        chunks += [json.loads(data) for data in stream.push(event)]
        whole.push(event)
    answer = json.loads(whole.finish())
    texts, roles, reasons = [""] * 3, [[], [], []], [None] * 3
    for chunk in chunks[:-1]:
        assert chunk["object"] == "chat.completion.chunk"
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles[choice["index"]] += [choice["delta"]["role"]] if "role" in choice["delta"] else []
        reasons[choice["index"]] = choice["finish_reason"]
    assert roles == [["assistant"]] * 3
    assert texts == [choice["message"]["content"] for choice in answer["choices"]]
    assert reasons == [choice["finish_reason"] for choice in answer["choices"]] == ["stop"] * 3
    assert chunks[-1]["usage"] == answer["usage"]
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 4
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (3, 7)
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
