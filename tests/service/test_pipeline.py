from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import pytest
from front_fakes import INFO, MARKS, VOCAB, FakeBackend, FakeText, say

from stoker.engine.chain import ChainScheme, pack
from stoker.fleet.backend import Down, Starting
from stoker.service.pipeline import Service
from stoker.types.chat import (
    ChatRequest,
    ChoiceDone,
    CompletionRequest,
    Done,
    Image,
    JsonOutput,
    Message,
    TextDelta,
    Tool,
    ToolCall,
    ToolChoice,
)
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.lane import Lane
from stoker.types.sampling import SamplingParams
from stoker.types.usage import Usage


@pytest.fixture
async def service():
    made = Service(FakeText(), INFO, FakeBackend())
    yield made
    made.close()


def completion(*prompts, **more) -> CompletionRequest:
    return CompletionRequest(model="fake", prompts=prompts or ("hello",), **more)


async def run(service, request, tenant="local"):
    generation = await service.start(request, tenant=tenant, request_id="r")
    events = [event async for event in generation.events()]
    assert events[-1] == Done(usage=generation.usage)
    return generation, events


def texts(events, count):
    parts = [""] * count
    for event in events:
        if isinstance(event, TextDelta):
            parts[event.index] += event.text
    return parts


async def test_images_are_refused_by_name_where_a_model_only_reads(service):
    image = Image("https://127.0.0.1/", "messages[1].content[0]")
    request = ChatRequest(
        model="fake", messages=(Message(role="user", content="Hi"), Message(role="tool", content=(image, "x")))
    )
    error = await refused(service, request)
    assert (error.kind, error.code, error.param) == (ErrorKind.INVALID, "unsupported_content", image.param)
    assert error.message == "'messages[1].content[0]' is an image; the model 'fake' reads only text."
    with pytest.raises(StokerError, match="reads only text"):
        await service.tokenize(request)


async def refused(service, request) -> StokerError:
    with pytest.raises(StokerError) as failure:
        await service.start(request, tenant="local", request_id="r")
    return failure.value


async def test_what_the_engine_is_asked(service):
    sampling = SamplingParams(temperature=0.5, stop_ids=(7,), seed=3)
    await run(service, completion(sampling=sampling, lane=Lane.BATCH), tenant="acme")
    asked = service.backend.requests[0]
    assert asked.prompt_ids == list(b"hello")
    assert asked.domain == "tenant:acme"
    assert asked.lane == Lane.BATCH
    assert asked.sampling.stop_ids == (7,)  # the engine knows the model's own
    assert asked.sampling.max_tokens == 4096 - 5
    assert (asked.sampling.temperature, asked.sampling.seed) == (0.5, 3)


async def test_prompts_go_with_their_links():
    scheme = ChainScheme(b"key", INFO.fingerprint, 4)
    service = Service(FakeText(), INFO, FakeBackend(), scheme=scheme)
    root = scheme.root(domain="tenant:acme")
    for request in (
        completion("x" * 30, session="s"),
        completion("x" * 37, session="s"),
        completion("abcd", "efghijkl"),
    ):
        service.backend.requests.clear()
        await run(service, request, tenant="acme")
        for asked in service.backend.requests:
            assert asked.links == scheme.extend(b"", root, pack(asked.prompt_ids)) != b""
    service.close()


async def test_nothing_is_remembered_where_it_is_not_wanted(service):
    for remember in (True, False, False, True):
        request = completion("x" * 30, session="s")
        generation = await service.start(request, tenant="acme", request_id="r", remember=remember)
        assert remember or generation.divergence is None
    assert generation.divergence is not None
    assert sum(map(len, service._sessions._sessions.values())) == 1


@pytest.mark.parametrize(("asked", "given"), [(10, 10), (4091, 4091), (4092, 4091), (1 << 30, 4091)])
async def test_max_tokens_is_clamped_to_the_context(service, asked, given):
    await run(service, completion(sampling=SamplingParams(max_tokens=asked)))
    assert service.backend.requests[0].sampling.max_tokens == given


async def test_usage_counts_a_prompt_once(service):
    service.backend.cached = 2
    generation, events = await run(service, completion("abc", "defgh", n=3))
    assert texts(events, 6) == ["Hello there."] * 6
    assert generation.usage == Usage(input_uncached=8 - 4, input_cached=4, output_text=6 * 12)
    assert sum(isinstance(event, ChoiceDone) for event in events) == 6


async def test_choices_that_wait_for_a_shared_prompt_do_not_make_it_look_cached(service):
    """The engine computes the prompt for the first choice; the others find it in the cache."""
    generate = service.backend.generate

    async def engine(request, route):
        service.backend.cached = 0 if request.id == "r/0" else 4
        async for progress in generate(request, route):
            yield progress

    service.backend.generate = engine
    generation, _ = await run(service, completion(n=3))
    assert (generation.usage.input_uncached, generation.usage.input_cached) == (5, 0)
    assert [request.id for request in service.backend.requests] == ["r/0", "r/1", "r/2"]


async def test_before_the_first_token_nothing_counts(service):
    generation = await service.start(completion(n=2), tenant="local", request_id="r")
    assert generation.usage == Usage()


async def test_a_stop_string_aborts_the_engine(service):
    service.backend.script = lambda _: say("one two three four", size=3)
    generation, events = await run(service, completion(stop=("three",)))
    assert texts(events, 1) == ["one two "]
    assert events[-2] == ChoiceDone(index=0, reason="stop", stop="three")
    assert service.backend.aborted == ["r/0"]
    assert generation.usage.output == 15  # what was computed, not what was shown


async def test_closing_early_closes_every_choice(service):
    service.backend.script = lambda _: say("x" * 1000, pause=0.001)
    generation = await service.start(completion(n=3), tenant="local", request_id="r")
    async with aclosing(generation.events()) as events:
        async for event in events:
            if isinstance(event, TextDelta) and event.index == 2:
                break
    assert not service.backend.open
    assert sorted(service.backend.aborted) == ["r/0", "r/1", "r/2"]


async def test_a_long_output_that_is_ready_at_once_does_not_keep_the_loop(service):
    service.backend.script = lambda _: say("x" * 10_000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    task = asyncio.create_task(other())
    await run(service, completion())
    task.cancel()
    assert turns > 100


async def test_echo(service):
    _, events = await run(service, completion("in: ", (105, 110), echo=True, stop=("in",)))
    assert texts(events, 2) == ["in: Hello there.", "inHello there."]


async def test_seeds_differ_between_choices_and_stay_in_64_bits(service):
    await run(service, completion(n=2, sampling=SamplingParams(seed=(1 << 63) - 1)))
    seeds = [request.sampling.seed for request in service.backend.requests]
    assert seeds == [(1 << 63) - 1, -(1 << 63)]


async def test_the_context_is_checked_before_the_engine_is_asked(service):
    for request in (completion("x" * 4096), completion(tuple([1] * 4096)), completion("a", "x" * 5000)):
        error = await refused(service, request)
        assert error.code == "context_length_exceeded"
        assert "4096" in error.message
        assert error.param == ("prompt[1]" if len(request.prompts) == 2 else "prompt")
    assert service.backend.requests == []
    assert (await run(service, completion("x" * 4095)))[0].usage.input == 4095


async def test_hopeless_prompts_are_not_even_tokenized(service):
    service._text.encode = service._text.render = None
    user, long = Message(role="user", content="Hi"), "x" * (4096 * 64)
    call = ToolCall(id="1", name="f", arguments=long)
    for chat in (
        {"messages": (Message(role="user", content=long),)},
        {"messages": (user, Message(role="assistant", reasoning=long))},
        {"messages": (user, Message(role="assistant", tool_calls=(call,)))},
        {"messages": (user,), "tools": (Tool(name="f", description=long),)},
        {"messages": (user,), "tools": (Tool(name="f", parameters={"x": long}),)},
    ):
        assert (await refused(service, ChatRequest(model="fake", **chat))).code == "context_length_exceeded"
    error = await refused(service, completion("x" * (4096 * 64)))
    assert f"at least {4096 * 64 // max(map(len, MARKS))} tokens" in error.message


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (completion((VOCAB,)), "prompt"),
        (completion(sampling=SamplingParams(logit_bias={VOCAB: 1.0})), "logit_bias"),
    ],
)
async def test_ids_outside_the_vocabulary(service, request_, param):
    error = await refused(service, request_)
    assert (error.code, error.param) == ("invalid_value", param)


async def test_short_prompts_never_wait_for_long_ones(service):
    encode, go = service._text.encode, threading.Event()

    def slow(text):
        if len(text) > 20_000:
            go.wait(5.0)
        return encode(text)

    service._text.encode = slow
    long = [asyncio.create_task(refused(service, completion("x" * 30_000))) for _ in range(8)]
    await asyncio.wait_for(run(service, completion("short")), 2.0)
    go.set()
    assert {error.code for error in await asyncio.gather(*long)} == {"context_length_exceeded"}


async def test_an_empty_prompt(service):
    assert (await refused(service, completion(""))).code == "empty_prompt"


@pytest.mark.parametrize("state", [Starting(stage="weights", fraction=0.5), Down(reason="it crashed")])
async def test_no_engine(service, state):
    service.backend.state = state
    error = await refused(service, completion())
    assert error.kind is ErrorKind.UNAVAILABLE
    assert error.retry_after is not None
    assert ("weights, 50%" if isinstance(state, Starting) else "it crashed") in error.message


async def test_an_output_without_an_end_is_an_error(service):
    service.backend.script = lambda _: [b"abc"]
    with pytest.raises(StokerError, match="without a reason"):
        await run(service, completion())


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"response_format": JsonOutput()}, "response_format"),
        ({"tool_choice": ToolChoice(mode="required"), "tools": (Tool(name="f"),)}, "tool_choice"),
    ],
)
async def test_what_the_engine_cannot_constrain(service, more, param):
    error = await refused(service, ChatRequest(model="fake", messages=(Message(role="user", content="Hi"),), **more))
    assert (error.code, error.param) == ("unsupported_parameter", param)


async def test_chats_are_rendered(service):
    request = ChatRequest(model="fake", messages=(Message(role="user", content="Hi"),))
    await run(service, request)
    assert bytes(service.backend.requests[0].prompt_ids) == b"user:Hi\n"
    assert await service.tokenize(request) == [list(b"user:Hi\n")]
