"""Server-sent events on the wire: framing, heartbeats, errors, the end."""

from __future__ import annotations

import asyncio
import json

from front_fakes import FakeBackend, say
from raw_http import CHAT, ask, chat_body, connect, parse_events, post, read_answer, read_chunk, read_head

from stoker.types.errors import ErrorKind, StokerError


async def test_framing(server):
    server.backend.script = lambda _: say("two\n\nlines \u2028 and 'data: x'\r\n", size=3)
    answer = await ask(server, post(CHAT, chat_body(stream=True, stream_options={"include_usage": True})))
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-cache"
    data, comments = parse_events(answer.body)
    assert comments == 0
    assert data[-1] == "[DONE]"
    chunks = [json.loads(item) for item in data[:-1]]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text == "two\n\nlines \u2028 and 'data: x'\r\n"
    assert [c["usage"] is not None for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["choices"] == []


async def test_without_include_usage_no_usage_anywhere(server):
    data, _ = parse_events((await ask(server, post(CHAT, chat_body(stream=True)))).body)
    assert not any("usage" in item for item in data)


async def test_one_chunk_for_all_tokens_of_a_step(server):
    server.backend.script = lambda _: [b"many tokens", b" at once", "stop"]
    data, _ = parse_events((await ask(server, post(CHAT, chat_body(stream=True)))).body)
    deltas = [json.loads(item)["choices"][0]["delta"] for item in data[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "many tokens"}, {"content": " at once"}, {}]


async def test_heartbeats_fill_silence_and_only_silence(launch):
    server = await launch(FakeBackend(lambda _: [1.0, *say("x" * 10, pause=0.01)]), heartbeat=0.3)
    async with connect(server) as (reader, writer):
        writer.write(post(CHAT, chat_body(stream=True)))
        assert (await read_head(reader))[0] == 200
        assert await read_chunk(reader) == b": keep-alive\n\n"  # before any token
        rest = b""
        while chunk := await read_chunk(reader):
            rest += chunk
    data, comments = parse_events(rest)
    assert 1 <= comments <= 2
    assert data[-1] == "[DONE]"
    assert rest.rindex(b": keep-alive") < rest.index(b"data: ")


async def test_a_failure_after_the_first_byte_is_an_event(server):
    server.backend.script = lambda _: [
        b"abc",
        StokerError(ErrorKind.UNAVAILABLE, "engine_died", "The engine died.", retry_after=1),
    ]
    answer = await ask(server, post(CHAT, chat_body(stream=True)))
    assert answer.status == 200
    data, _ = parse_events(answer.body)
    assert json.loads(data[-1])["error"]["code"] == "engine_died"
    assert "[DONE]" not in data


async def test_a_failure_before_the_first_byte_has_its_status(server):
    server.backend.script = lambda _: [StokerError(ErrorKind.CAPACITY, "queue_full", "Full.", retry_after=2.6)]
    answer = await ask(server, post(CHAT, chat_body(stream=True)))
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "queue_full", "3")
    server.backend.script = lambda _: [StokerError(ErrorKind.UNAVAILABLE, "engine_died", "Died.")]
    assert (await ask(server, post(CHAT, chat_body()))).headers["retry-after"] == "1"


async def test_a_fault_of_ours_in_a_stream_ends_it_visibly(server):
    server.backend.script = lambda _: [b"abc", ZeroDivisionError()]
    async with connect(server) as (reader, writer):
        writer.write(post(CHAT, chat_body(stream=True)))
        answer = await read_answer(reader)
    data, _ = parse_events(answer.body)
    assert json.loads(data[-1])["error"]["code"] == "internal_error"


async def test_stopping_the_server_says_goodbye_to_open_streams(launch):
    stop = asyncio.Event()
    server = await launch(FakeBackend(lambda _: [b"abc", 3600.0]), stop=stop)
    async with connect(server) as (reader, writer), connect(server) as (idle, _):
        writer.write(post(CHAT, chat_body(stream=True)))
        await read_head(reader)
        first = await read_chunk(reader)
        stop.set()
        rest = b""
        async with asyncio.timeout(1.5):
            while chunk := await read_chunk(reader):
                rest += chunk
            assert await reader.read() == b""
            assert await idle.read() == b""
    data, _ = parse_events(first + rest)
    assert json.loads(data[-1])["error"]["code"] == "server_stopping"
    assert not server.backend.open


async def test_stopping_the_server_lets_short_answers_end(launch):
    stop = asyncio.Event()
    server = await launch(FakeBackend(lambda _: [0.2, *say("done")]), stop=stop, shutdown_grace=2.0)
    async with connect(server) as (reader, writer):
        writer.write(post(CHAT, chat_body()))
        await server.backend.until(lambda: len(server.backend.open) == 1)
        stop.set()
        assert (await read_answer(reader)).status == 200
