"""The unmodified anthropic package against /v1/messages of a whole gateway."""

from __future__ import annotations

import hashlib
import json

import anthropic
import pytest
from front_fakes import FakeBackend, say
from raw_http import ask, head, post
from stream_checks import check_messages

from stoker.config import Tenant
from stoker.types.errors import ErrorKind, StokerError

PATH = "/v1/messages"
USER = {"role": "user", "content": "Hi"}
ASK = {"model": "fake", "max_tokens": 100, "messages": [USER]}


def connect(server, key: str = "none") -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.url, api_key=key, max_retries=0)


@pytest.fixture
async def client(server):
    async with connect(server) as made:
        yield made


def events_of(body: bytes) -> list[dict]:
    """Every event goes out under the name of its type."""
    events = []
    for block in body.decode().removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_whole(client, server):
    server.backend.cached = 4
    answer = await client.messages.create(**ASK, system="Be kind.")
    assert [block.text for block in answer.content] == ["Hello there."]
    assert (answer.role, answer.stop_reason, answer.stop_sequence) == ("assistant", "end_turn", None)
    assert answer.id.startswith("msg_")
    assert answer._request_id.startswith("req-")
    prompt = "system:Be kind.\nuser:Hi\n"
    assert bytes(server.backend.requests[0].prompt_ids).decode() == prompt
    assert (answer.usage.input_tokens, answer.usage.cache_read_input_tokens) == (len(prompt) - 4, 4)
    assert answer.usage.output_tokens == len("Hello there.")


async def test_streamed(client, server):
    server.backend.cached = 4
    server.backend.script = lambda _: say("héllo ✓", size=1)
    async with client.messages.stream(**ASK) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == final.content[0].text == "héllo ✓"
    assert final.stop_reason == "end_turn"
    assert (final.usage.input_tokens, final.usage.cache_read_input_tokens) == (4, 4)
    assert final.usage.output_tokens == len("héllo ✓".encode())


async def test_the_events_are_in_order_and_named(server):
    server.backend.cached = 4
    server.backend.script = lambda _: say("héllo", size=1)
    answer = await ask(server, post(f"{PATH}?beta=true", ASK | {"stream": True}))
    message = check_messages(events_of(answer.body))
    assert message["content"] == [{"type": "text", "text": "héllo"}]
    assert message["usage"]["cache_read_input_tokens"] == 4


async def test_stop_sequences(client, server):
    server.backend.script = lambda _: say("one two three")
    answer = await client.messages.create(**ASK, stop_sequences=["two", "x"])
    assert (answer.content[0].text, answer.stop_reason, answer.stop_sequence) == ("one ", "stop_sequence", "two")


async def test_more_tokens_than_fit_are_taken_for_as_many_as_fit(client, server):
    server.backend.script = lambda _: say("abc", finish="length")
    answer = await client.messages.create(**ASK | {"max_tokens": 20_000})
    assert server.backend.requests[0].sampling.max_tokens == 4096 - len("user:Hi\n")
    assert answer.stop_reason == "max_tokens"


async def test_counting(client, server):
    count = await client.messages.count_tokens(model="fake", messages=[USER], system="Be kind.")
    assert count.input_tokens == len("system:Be kind.\nuser:Hi\n")
    assert server.backend.requests == []
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.count_tokens(model="other", messages=[USER])


async def test_errors_have_anthropic_classes(client, server):
    with pytest.raises(anthropic.NotFoundError) as missing:
        await client.messages.create(**ASK | {"model": "other"})
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as wrong:
        await client.messages.create(**ASK | {"messages": [{"role": "user", "content": "x" * 5000}]})
    assert wrong.value.body["type"] == "error"
    assert wrong.value.body["error"]["type"] == "invalid_request_error"
    assert "5006" in wrong.value.body["error"]["message"]
    assert "4096" in wrong.value.body["error"]["message"]
    server.backend.script = lambda _: [StokerError(ErrorKind.CAPACITY, "queue_full", "Full.", retry_after=3.0)]
    with pytest.raises(anthropic.APIStatusError) as full:
        await client.messages.create(**ASK)
    assert (full.value.status_code, full.value.body["error"]["type"]) == (529, "overloaded_error")
    assert full.value.response.headers["retry-after"] == "3"
    server.backend.script = lambda _: [b"abc", StokerError(ErrorKind.UNAVAILABLE, "engine_died", "It died.")]
    with pytest.raises(anthropic.APIStatusError, match="It died"):
        async with client.messages.stream(**ASK) as stream:
            await stream.get_final_message()


async def test_errors_of_the_gateway_itself_have_that_shape_too(launch):
    server = await launch(tenants=(Tenant(name="ann", key_sha256=hashlib.sha256(b"ann").hexdigest()),))
    async with connect(server, "eve") as eve, connect(server, "ann") as ann:
        with pytest.raises(anthropic.AuthenticationError):
            await eve.messages.create(**ASK)
        await ann.messages.create(**ASK)
    assert server.backend.requests[0].domain == "tenant:ann"
    for request, status in ((head("GET", PATH), 405), (post(f"{PATH}/batches", {}, x_api_key="ann"), 404)):
        answer = await ask(server, request)
        assert (answer.status, answer.json["type"]) == (status, "error")


async def test_the_session_of_a_coding_agent(server, caplog):
    caplog.set_level("INFO", "stoker")
    body = ASK | {"metadata": {"user_id": json.dumps({"session_id": "body"})}}
    await ask(server, post(PATH, body))
    await ask(server, post(PATH, body, x_claude_code_session_id="head"))
    lines = [record for record in caplog.records if getattr(record, "action", "") == "http.request"]
    assert [line.session for line in lines] == ["body", "head"]
    assert all(line.tokens_out == 12 for line in lines)


async def test_closing_a_stream_aborts(launch):
    server = await launch(FakeBackend(lambda _: say("x" * 1000, pause=0.005)))
    async with connect(server) as client, client.messages.stream(**ASK) as stream:
        await anext(aiter(stream.text_stream))
    await server.backend.until(lambda: not server.backend.open, within=2.0)
    assert len(server.backend.aborted) == 1
