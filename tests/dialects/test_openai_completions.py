from __future__ import annotations

import json

import pytest

from stoker.dialects.encoder import Head
from stoker.dialects.openai_completions import CompletionStream, CompletionWhole, decode_completion
from stoker.types.chat import ChoiceDone, Done, ReasoningDelta, TextDelta, TokenLogprob
from stoker.types.errors import StokerError
from stoker.types.usage import Usage

HEAD = Head(id="cmpl-1", created=5, model="m", fingerprint="fp")


def decode(**body):
    return decode_completion({"model": "m", "prompt": "p"} | body, session=None)


@pytest.mark.parametrize(
    ("given", "prompts"),
    [
        ("a", ("a",)),
        (["a", "b"], ("a", "b")),
        ([1, 2], ((1, 2),)),
        ([[1], [2, 3]], ((1,), (2, 3))),
        (["a", [1]], ("a", (1,))),
    ],
)
def test_prompts(given, prompts):
    assert decode(prompt=given).prompts == prompts


def test_sixteen_tokens_unless_told_otherwise():
    assert decode().sampling.max_tokens == 16
    assert decode(max_tokens=5).sampling.max_tokens == 5


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"prompt": None}, "missing_required_parameter", "prompt"),
        ({"prompt": []}, "empty_array", "prompt"),
        ({"prompt": [[]]}, "empty_array", "prompt[0]"),
        ({"prompt": {}}, "invalid_type", "prompt"),
        ({"prompt": ["a", 5]}, "invalid_type", "prompt[1]"),
        ({"prompt": [1, "a"]}, "invalid_type", "prompt"),
        ({"prompt": [1, -1]}, "invalid_value", "prompt"),
        ({"prompt": [1, 1 << 31]}, "invalid_value", "prompt"),
        ({"prompt": ["a"] * 129}, "array_above_max_length", "prompt"),
        ({"prompt": ["a"] * 100, "n": 2}, "integer_above_max_value", "n"),
        ({"logprobs": 21}, "integer_above_max_value", "logprobs"),
        ({"logprobs": True}, "invalid_type", "logprobs"),
        ({"logprobs": 1, "echo": True}, "unsupported_parameter", "echo"),
        ({"best_of": 2}, "unsupported_parameter", "best_of"),
        ({"best_of": 17}, "integer_above_max_value", "best_of"),
        ({"suffix": "x"}, "unsupported_parameter", "suffix"),
        ({"use_beam_search": True}, "unsupported_parameter", "use_beam_search"),
    ],
)
def test_refusals_name_the_parameter(body, code, param):
    with pytest.raises(StokerError) as failure:
        decode(**body)
    assert (failure.value.code, failure.value.param) == (code, param)


def test_best_of_as_many_as_asked_for():
    assert decode(best_of=3, n=3).n == 3


def token(text: bytes, *top: tuple[int, bytes, float]) -> TokenLogprob:
    return TokenLogprob(id=1, text=text, logprob=-1.0, top=top)


EVENTS = [
    TextDelta(index=0, text="é", logprobs=(token(b"\xc3"), token(b"\xa9", (2, b"\xa9", -1.0), (3, b"x", -2.0)))),
    TextDelta(index=0, text="ab", logprobs=(token(b"ab"),)),
    TextDelta(index=0, text="c", logprobs=(token(b"c"),)),
    ChoiceDone(index=0, reason="length"),
    Done(usage=Usage(input_uncached=3, input_cached=2, output_text=4)),
]
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 4,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 0},
}
LOGPROBS = {
    "tokens": ["bytes:\\xc3", "bytes:\\xa9", "ab", "c"],
    "token_logprobs": [-1.0] * 4,
    "top_logprobs": [{}, {"bytes:\\xa9": -1.0, "x": -2.0}, {}, {}],
    "text_offset": [0, 0, 1, 3],
}


def test_a_whole_answer():
    whole = CompletionWhole(decode(logprobs=2, service_tier="auto"), HEAD)
    for event in EVENTS:
        whole.push(event)
    assert json.loads(whole.finish()) == {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 5,
        "model": "m",
        "system_fingerprint": "fp",
        "service_tier": "default",
        "choices": [{"index": 0, "text": "éabc", "logprobs": LOGPROBS, "finish_reason": "length"}],
        "usage": USAGE,
    }


def test_a_stream_says_the_same():
    stream = CompletionStream(decode(logprobs=2, stream=True, stream_options={"include_usage": True}), HEAD)
    chunks = [json.loads(data) for event in EVENTS for data in stream.push(event)]
    joined = {name: [] for name in LOGPROBS}
    for chunk in chunks[:-2]:
        for name in joined:
            joined[name] += chunk["choices"][0]["logprobs"][name]
    assert joined == LOGPROBS
    assert [chunk["usage"] for chunk in chunks] == [None, None, None, None, USAGE]
    assert chunks[-1]["choices"] == []
    assert chunks[-2]["choices"] == [{"index": 0, "text": "", "logprobs": None, "finish_reason": "length"}]
    assert stream.end == b"[DONE]"


def test_raw_completions_know_nothing_but_text():
    event = ReasoningDelta(index=0, text="hm")
    for encoder in (CompletionStream(decode(), HEAD), CompletionWhole(decode(), HEAD)):
        with pytest.raises(TypeError, match="ReasoningDelta"):
            encoder.push(event)
