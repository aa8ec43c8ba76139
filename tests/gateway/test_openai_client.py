"""The unmodified openai package against a whole gateway."""

from __future__ import annotations

import asyncio

import openai
import pytest
from front_fakes import FakeBackend, say

MESSAGES = [{"role": "user", "content": "Hi"}]


def sync_client(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


@pytest.fixture
async def client(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


async def test_chat(client, server):
    server.backend.cached = 4
    answer = await client.chat.completions.create(model="fake", messages=MESSAGES, service_tier="flex")
    assert answer.choices[0].message.content == "Hello there."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.system_fingerprint == "fp_0123456789abcdef"
    assert answer.service_tier == "flex"
    assert answer.usage.prompt_tokens == len("user:Hi\n")
    assert answer.usage.prompt_tokens_details.cached_tokens == 4
    assert answer.usage.completion_tokens == len("Hello there.")
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


async def test_chat_stream(client, server):
    server.backend.script = lambda _: say("héllo ✓", size=1)
    stream = await client.chat.completions.create(
        model="fake", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "héllo ✓"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len("héllo ✓".encode())
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


async def test_sync_client(server):
    def talk() -> tuple[str, str]:
        with sync_client(server) as client:
            whole = client.chat.completions.create(model="fake", messages=MESSAGES)
            stream = client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
            return whole.choices[0].message.content, "".join(c.choices[0].delta.content or "" for c in stream)

    assert await asyncio.to_thread(talk) == ("Hello there.", "Hello there.")


async def test_choices_and_logprobs(client, server):
    answer = await client.chat.completions.create(
        model="fake", messages=MESSAGES, n=3, logprobs=True, top_logprobs=2, seed=7
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.prompt_tokens == len("user:Hi\n")
    assert answer.usage.completion_tokens == 3 * len("Hello there.")
    for choice in answer.choices:
        assert "".join(token.token for token in choice.logprobs.content) == "Hello there."
        assert all(len(token.top_logprobs) == 2 for token in choice.logprobs.content)
    assert [request.sampling.seed for request in server.backend.requests] == [7, 8, 9]


async def test_completions(client, server):
    answer = await client.completions.create(
        model="fake", prompt=["ab", "cd"], n=2, echo=True, max_tokens=50, extra_body={"top_k": 5}
    )
    assert [choice.text for choice in answer.choices] == ["abHello there."] * 2 + ["cdHello there."] * 2
    assert answer.usage.prompt_tokens == 4
    assert {request.sampling.top_k for request in server.backend.requests} == {5}


async def test_completion_ids_stream_logprobs(client, server):
    stream = await client.completions.create(
        model="fake", prompt=[104, 105], logprobs=1, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    choices = [c.choices[0] for c in chunks if c.choices]
    assert "".join(choice.text for choice in choices) == "Hello there."
    assert [offset for c in choices if c.logprobs for offset in c.logprobs.text_offset] == list(range(12))
    assert chunks[-1].usage.prompt_tokens == 2


async def test_closing_a_stream_aborts(client, server):
    server.backend.script = lambda _: say("x" * 1000, pause=0.005)
    stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
    await anext(aiter(stream))
    await stream.close()
    await server.backend.until(lambda: not server.backend.open, within=2.0)
    assert len(server.backend.aborted) == 1


async def test_errors_have_openai_classes(client, server):
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="other", messages=MESSAGES)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(model="fake", messages=MESSAGES, temperature=3)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        await client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "x" * 5000}])
    assert long.value.code == "context_length_exceeded"
    assert "5006" in long.value.message
    assert "4096" in long.value.message


async def test_error_in_the_middle_of_a_stream(client, server):
    server.backend.script = lambda _: [b"abc", "error"]
    stream = await client.chat.completions.create(model="fake", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIError) as failure:
        [chunk async for chunk in stream]
    assert failure.value.code == "generation_failed"


async def test_models(client, server):
    models = await client.models.list()
    assert [model.id for model in models.data] == ["fake"]
    assert (await client.models.retrieve("fake")).model_dump()["context_length"] == 4096
    with pytest.raises(openai.NotFoundError):
        await client.models.retrieve("other")


async def test_many_streams_at_once(launch):
    server = await launch(FakeBackend(lambda request: say(bytes(request.prompt_ids).decode() * 5, pause=0.002)))
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        async def one(number: int) -> str:
            stream = await client.completions.create(model="fake", prompt=f"<{number}>", stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

        answers = await asyncio.gather(*(one(number) for number in range(64)))
    assert answers == [f"<{number}>" * 5 for number in range(64)]
