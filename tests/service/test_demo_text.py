"""The pipeline over a real tokenizer and chat template, with a scripted engine."""

from __future__ import annotations

import pytest
from front_fakes import FakeBackend
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.models.info import read_info
from stoker.service.choice import Choice, PlainParser
from stoker.service.pieces import PieceReader
from stoker.service.pipeline import Service
from stoker.types.chat import ChatRequest, ChoiceDone, CompletionRequest, Done, Message, TextDelta
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Progress, SampledToken

ANSWER = "Größe 😀: the quick brown fox\n\njumps over the lazy dog, naïvely."


@pytest.fixture
async def service(demo_text, demo_files):
    made = Service(demo_text, read_info(demo_files), FakeBackend(context=8192), name="demo")
    yield made
    made.close()


async def answer(service, request):
    generation = await service.start(request, tenant="local", request_id="r")
    events = [event async for event in generation.events()]
    return "".join(event.text for event in events if isinstance(event, TextDelta)), events


async def test_a_chat_with_log_probabilities(service, demo_text):
    ids = demo_text.encode(ANSWER)
    service.backend.script = lambda _: [*([token] for token in ids), "stop"]
    request = ChatRequest(
        model="demo",
        messages=(Message(role="user", content="Say it."),),
        sampling=SamplingParams(logprobs=1, max_tokens=1 << 20),
    )
    text, events = await answer(service, request)
    assert text == ANSWER
    tokens = [token for event in events if isinstance(event, TextDelta) for token in event.logprobs]
    assert [token.id for token in tokens] == ids
    assert b"".join(token.text for token in tokens).decode() == ANSWER
    asked = service.backend.requests[0]
    assert asked.sampling.max_tokens == 8192 - len(asked.prompt_ids)
    assert events[-1] == Done(usage=events[-1].usage)
    assert events[-1].usage.output == len(ids)
    assert events[-1].usage.input == len(asked.prompt_ids)


@pytest.mark.parametrize("stop", ["lazy", "fox\n\nju", "😀", "ö", " the", "."])
async def test_stop_strings_across_real_tokens(service, demo_text, stop):
    service.backend.script = lambda _: [*([token] for token in demo_text.encode(ANSWER)), "length"]
    request = CompletionRequest(model="demo", prompts=("x",), stop=(stop,))
    text, events = await answer(service, request)
    assert text == ANSWER[: ANSWER.index(stop)]
    assert events[-2] == ChoiceDone(index=0, reason="stop", stop=stop)


@settings(max_examples=200, deadline=None)
@given(start=st.integers(0, len(ANSWER) - 1), length=st.integers(1, 12), step=st.integers(1, 7))
def test_any_piece_of_the_text_stops_it(demo_text, start, length, step):
    stop = ANSWER[start : start + length]
    ids = demo_text.encode(ANSWER)
    made = Choice(
        0, PieceReader(demo_text.detokenizer(), {}), PlainParser(0), demo_text.token_bytes, [stop], logprobs=False
    )
    text = ""
    for at in range(0, len(ids), step):
        tokens = [SampledToken(id=token) for token in ids[at : at + step]]
        events = made.push(Progress(id="r", tokens=tokens, finish="length" if at + step >= len(ids) else None))
        text += "".join(event.text for event in events if isinstance(event, TextDelta))
        if made.done:
            break
    assert text == ANSWER[: ANSWER.index(stop)]


async def test_tokens_there_and_back(service):
    (ids,) = await service.tokenize(CompletionRequest(model="", prompts=(ANSWER,)))
    assert await service.decode(tuple(ids)) == ANSWER
