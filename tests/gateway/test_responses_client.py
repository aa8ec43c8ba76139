"""The unmodified openai package against /v1/responses of a whole gateway."""

from __future__ import annotations

import hashlib
import json

import openai
import pytest
from front_fakes import say
from raw_http import ask, post
from stream_checks import check_responses

from stoker.config import Tenant
from stoker.types.errors import ErrorKind, StokerError

PATH = "/v1/responses"


def tenant(name: str, **more) -> Tenant:
    return Tenant(name=name, key_sha256=hashlib.sha256(name.encode()).hexdigest(), **more)


def connect(server, key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture
async def client(server):
    async with connect(server) as made:
        yield made


def events_of(body: bytes) -> list[dict]:
    """Every event goes out under the name of its type."""
    blocks = body.decode().removesuffix("\n\n").split("\n\n")
    events = []
    for block in blocks:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def prompt(server, number: int = -1) -> str:
    return bytes(server.backend.requests[number].prompt_ids).decode()


async def test_whole(client, server):
    server.backend.cached = 4
    answer = await client.responses.create(model="fake", input="Hi", instructions="Be kind.", metadata={"a": "b"})
    assert answer.output_text == "Hello there."
    assert (answer.status, answer.error, answer.incomplete_details) == ("completed", None, None)
    assert answer.id.startswith("resp_")
    assert prompt(server) == "system:Be kind.\nuser:Hi\n"
    assert answer.usage.input_tokens == len("system:Be kind.\nuser:Hi\n")
    assert answer.usage.input_tokens_details.cached_tokens == 4
    assert answer.usage.output_tokens == len("Hello there.")
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert (answer.instructions, answer.metadata, answer.parallel_tool_calls) == ("Be kind.", {"a": "b"}, True)


async def test_streamed(client, server):
    server.backend.script = lambda _: say("héllo ✓", size=1)
    async with client.responses.stream(model="fake", input="Hi") as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert final.output_text == "héllo ✓"
    assert types[:2] == ["response.created", "response.in_progress"]
    assert types[-1] == "response.completed"
    assert final.usage.output_tokens == len("héllo ✓".encode())


async def test_the_events_are_in_order_and_named(server):
    server.backend.script = lambda _: say("héllo", size=1)
    answer = await ask(server, post(PATH, {"model": "fake", "input": "Hi", "stream": True}))
    final = check_responses(events_of(answer.body))
    assert final["output"][0]["content"][0]["text"] == "héllo"


async def test_what_does_not_fit_is_incomplete(client, server):
    server.backend.script = lambda _: say("abc", finish="length")
    answer = await client.responses.create(model="fake", input="Hi", max_output_tokens=3)
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert server.backend.requests[0].sampling.max_tokens == 3
    stream = await client.responses.create(model="fake", input="Hi", stream=True)
    assert [event.type async for event in stream][-1] == "response.incomplete"


async def test_going_on_from_an_answer(client, server):
    first = await client.responses.create(model="fake", input="One", instructions="I.")
    stream = await client.responses.create(model="fake", input="Two", previous_response_id=first.id, stream=True)
    second = [event async for event in stream][-1].response
    assert second.previous_response_id == first.id
    assert prompt(server) == "user:One\nassistant:Hello there.\nuser:Two\n"
    for _ in range(2):  # an answer can be gone on from more than once
        await client.responses.create(model="fake", input="Three", instructions="J.", previous_response_id=second.id)
        assert prompt(server) == (
            "system:J.\nuser:One\nassistant:Hello there.\nuser:Two\nassistant:Hello there.\nuser:Three\n"
        )


async def refused(client, response: str) -> str:
    with pytest.raises(openai.BadRequestError) as failure:
        await client.responses.create(model="fake", input="Hi", previous_response_id=response)
    assert failure.value.param == "previous_response_id"
    return failure.value.code


async def test_no_tenant_goes_on_from_anothers_answer(launch):
    server = await launch(tenants=(tenant("ann"), tenant("bob"), tenant("eve", retain=False)))
    async with connect(server, "ann") as ann, connect(server, "bob") as bob, connect(server, "eve") as eve:
        answer = await ann.responses.create(model="fake", input="Hi")
        assert answer.model_dump()["store"] is True
        assert await refused(bob, answer.id) == "previous_response_not_found"
        assert await refused(ann, "resp_nothing") == "previous_response_not_found"
        await ann.responses.create(model="fake", input="Hi", previous_response_id=answer.id)
        forgotten = await eve.responses.create(model="fake", input="Hi", store=True)
        assert forgotten.model_dump()["store"] is False
        assert await refused(eve, forgotten.id) == "previous_response_not_found"
    assert len(server.backend.requests) == 3


async def test_what_is_not_to_be_stored_is_not(client, launch):
    answer = await client.responses.create(model="fake", input="Hi", store=False)
    assert answer.model_dump()["store"] is False
    assert await refused(client, answer.id) == "previous_response_not_found"
    server = await launch(memory=0)
    async with connect(server) as other:
        answer = await other.responses.create(model="fake", input="Hi")
        assert answer.model_dump()["store"] is False
        assert await refused(other, answer.id) == "previous_response_not_found"


async def test_failures(client, server):
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.create(model="other", input="Hi")
    assert missing.value.code == "model_not_found"
    server.backend.script = lambda _: [b"abc", StokerError(ErrorKind.UNAVAILABLE, "engine_died", "It died.")]
    stream = await client.responses.create(model="fake", input="Hi", stream=True)
    last = [event async for event in stream][-1]
    assert last.type == "response.failed"
    assert last.response.error.code == "engine_died"
    assert await refused(client, last.response.id) == "previous_response_not_found"


async def test_the_session_of_a_coding_agent(server, caplog):
    caplog.set_level("INFO", "stoker")
    await ask(server, post(PATH, {"model": "fake", "input": "Hi", "prompt_cache_key": "key"}))
    await ask(server, post(PATH, {"model": "fake", "input": "Hi", "prompt_cache_key": "key"}, session_id="head"))
    lines = [record for record in caplog.records if getattr(record, "action", "") == "http.request"]
    assert [line.session for line in lines] == ["key", "head"]
    assert all(line.tokens_out == 12 for line in lines)
