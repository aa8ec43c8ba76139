"""Requests that are too large, broken, slow or cut: the right error, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from front_fakes import FakeBackend, say
from raw_http import CHAT, ask, chat_body, connect, get, head, parse_events, post, read_answer

MIB = 1 << 20


async def malformed(server, data: bytes) -> tuple[int, str]:
    answer = await ask(server, data)
    return answer.status, answer.code


@asynccontextmanager
async def bystanders(server):
    """16 streams that go on, and a health check every few milliseconds, while something bad happens."""
    slowest = 0.0

    async def stream() -> None:
        data, _ = parse_events((await ask(server, post(CHAT, chat_body(stream=True)), within=60)).body)
        text = "".join(json.loads(item)["choices"][0]["delta"].get("content", "") for item in data[:-1])
        assert text == "word " * 100

    async def health() -> None:
        nonlocal slowest
        while True:
            began = time.perf_counter()
            assert (await get(server, "/health/live")).status == 200
            slowest = max(slowest, time.perf_counter() - began)
            await asyncio.sleep(0.01)

    streams = [asyncio.create_task(stream()) for _ in range(16)]
    await server.backend.until(lambda: len(server.backend.open) == 16)
    checks = asyncio.create_task(health())
    yield
    await asyncio.gather(*streams)
    checks.cancel()
    print(f"slowest health check {slowest * 1000:.0f} ms")
    assert slowest < 0.5  # 0.1 on a quiet machine; this client shares the loop


@pytest.fixture
async def busy(launch):
    server = await launch(
        FakeBackend(lambda _: say("word " * 100, size=5, pause=0.01)),
        max_body=32 * MIB,
        header_timeout=0.5,
        body_timeout=1.0,
    )
    async with bystanders(server):
        yield server


BOMBS = {
    "not json": (b"{'a': 1}", "invalid_json"),
    "cut": (b'{"a": ', "invalid_json"),
    "empty": (b"", "invalid_json"),
    "not utf-8": (b'{"model": "\xff\xfe"}', "invalid_json"),
    "not utf-8 key": (b'{"\xc3(": 1}', "invalid_json"),
    "lone surrogate": (b'{"model": "\\ud800"}', "invalid_json"),
    "an array": (b"[1, 2]", "invalid_json"),
    "a number": (b"1", "invalid_json"),
    "deep arrays": (b"[" * 100_000, "invalid_json"),
    "deep objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "invalid_json"),
    "nan": (b'{"temperature": NaN}', "invalid_json"),
    "long number": (b'{"n": ' + b"9" * 100_000 + b"}", "invalid_json"),
}


@pytest.mark.parametrize("name", BOMBS)
async def test_broken_bodies(server, name):
    data, code = BOMBS[name]
    assert await malformed(server, post(CHAT, data)) == (400, code)
    assert server.backend.requests == []


async def test_deep_but_valid_values_are_refused_not_crashed_on(server):
    deep: dict = {}
    for _ in range(300):
        deep = {"a": deep}
    tools = [{"type": "function", "function": {"name": "f", "parameters": deep}}]
    answer = await ask(server, post(CHAT, chat_body(tools=tools)))
    assert (answer.status, answer.json["error"]["param"]) == (400, "tools[0].function.parameters")


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"content_type": "text/plain"}, "unsupported_content_type"),
        ({"content_type": "application/x-www-form-urlencoded"}, "unsupported_content_type"),
        ({"content_encoding": "gzip"}, "unsupported_content_encoding"),
    ],
)
async def test_wrong_headers(server, headers, code):
    assert await malformed(server, post(CHAT, chat_body(), **headers)) == (400, code)


async def test_content_type_with_charset(server):
    assert (await ask(server, post(CHAT, chat_body(), content_type="application/json; charset=utf-8"))).status == 200


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: nonsense\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
    ],
)
async def test_malformed_http(server, data):
    assert await malformed(server, data) == (400, "malformed_request")


async def test_an_announced_oversized_body_is_refused_before_it_is_sent(launch):
    server = await launch(max_body=MIB)
    request = head("POST", CHAT, content_type="application/json", content_length=str(MIB + 1))
    assert await malformed(server, request) == (413, "request_too_large")


async def test_an_oversized_body_is_refused_while_it_is_sent(launch):
    """The client writes all of it before it reads, as most do, and still gets the answer."""
    server = await launch(max_body=MIB)
    chunk = b"10000\r\n" + b" " * 65536 + b"\r\n"
    for request in (
        head("POST", CHAT, content_type="application/json", transfer_encoding="chunked") + chunk * 128 + b"0\r\n\r\n",
        post(CHAT, b" " * (8 * MIB)),
    ):
        async with connect(server) as (reader, writer):
            writer.write(request)
            await asyncio.wait_for(writer.drain(), 5.0)
            answer = await read_answer(reader)
            assert (answer.status, answer.code) == (413, "request_too_large")


async def test_a_long_head_is_refused(server):
    assert await malformed(server, b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000) == (431, "head_too_large")


ATTACK = """
import http.client, sys
port, path, prefix, repeat, times, suffix = sys.argv[1:]
body = prefix.encode() + repeat.encode() * int(times) + suffix.encode()
connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
connection.request("POST", path, body, {"content-type": "application/json"})
print(connection.getresponse().status)
"""
SIZE = 31 * MIB
LARGE = {
    "one long text": (CHAT, json.dumps(chat_body(metadata=""))[:-2], "a", SIZE, '"}', 200),
    "text of escapes": (CHAT, json.dumps(chat_body(metadata=""))[:-2], "\\n", SIZE // 2, '"}', 200),
    "a prompt that cannot fit": ("/v1/completions", '{"model":"fake","prompt":"', "a", SIZE, '"}', 400),
    "ids that cannot fit": ("/v1/completions", '{"model":"fake","prompt":[', "1,", 1_900_000, "1]}", 400),
    "numbers": ("/v1/completions", '{"model":"fake","prompt":[', "1,", SIZE // 2, "1]}", 413),
    "objects": (CHAT, '{"model":"fake","messages":[', "{},", SIZE // 3, "{}]}", 413),
    "arrays": ("/v1/completions", '{"model":"fake","prompt":[', "[],", SIZE // 3, "[]]}", 413),
    "too many messages": (CHAT, '{"model":"fake","messages":[', "{},", 200_000, "{}]}", 400),
}


async def test_large_hostile_bodies_disturb_nobody(busy):
    """Sent from a process of its own, so that only what the server does is in the way of the others."""
    for name, (path, prefix, repeat, times, suffix, status) in LARGE.items():
        arguments = (str(busy.port), path, prefix, repeat, str(times), suffix)
        attack = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ATTACK, *arguments, stdout=asyncio.subprocess.PIPE
        )
        output, _ = await attack.communicate()
        assert int(output) == status, name


async def test_slow_clients_are_cut_and_disturb_nobody(busy):
    async def slow_head() -> None:
        async with connect(busy) as (reader, writer):
            for byte in b"GET /health/live HTTP/1.1\r\nhost: a\r\nx-long: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa":
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)
                if reader.at_eof() or reader._buffer:
                    break
            answer = await read_answer(reader, within=5.0)
            assert (answer.status, answer.code) == (408, "header_timeout")

    async def slow_body() -> None:
        async with connect(busy) as (reader, writer):
            writer.write(head("POST", CHAT, content_type="application/json", content_length="1000"))
            for _ in range(120):
                writer.write(b" ")
                await asyncio.sleep(0.02)
                if reader._buffer:
                    break
            answer = await read_answer(reader, within=5.0)
            assert (answer.status, answer.code) == (408, "body_timeout")

    async def silent() -> None:
        async with connect(busy) as (reader, _):
            assert (await read_answer(reader, within=5.0)).status == 408

    await asyncio.gather(*(task() for task in (slow_head, slow_body, silent) for _ in range(20)))


async def test_half_closed_requests(busy):
    for data in (
        b"GET /health/live HTT",
        head("POST", CHAT, content_type="application/json", content_length="1000") + b'{"model"',
    ):
        async with connect(busy) as (reader, writer):
            writer.write(data)
            writer.write_eof()
            answer = await read_answer(reader)
            assert (answer.status, answer.code) == (400, "incomplete_request")
            assert await reader.read() == b""
    async with connect(busy) as (reader, writer):  # nothing asked, nothing answered
        writer.write_eof()
        assert await reader.read() == b""


async def test_pipelined_and_reused_connections(server):
    async with connect(server) as (reader, writer):
        writer.write(post(CHAT, chat_body()) + head("GET", "/health/live") + post(CHAT, chat_body(n=0)))
        assert [(await read_answer(reader)).status for _ in range(3)] == [200, 200, 400]
        writer.write(head("GET", "/"))
        assert (await read_answer(reader)).status == 200


async def test_a_connection_used_again_has_a_head_timeout_again(launch):
    server = await launch(header_timeout=0.2)
    async with connect(server) as (reader, writer):
        writer.write(head("GET", "/health/live"))
        assert (await read_answer(reader)).status == 200
        await asyncio.sleep(0.4)  # idle between requests is fine
        writer.write(b"GET /hea")
        assert (await read_answer(reader)).status == 408


async def test_too_many_connections(launch):
    server = await launch(max_connections=2)
    async with connect(server) as (reader, writer), connect(server):
        await asyncio.sleep(0.05)
        answer = await get(server, "/health/live")
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "too_many_connections", "1")
        writer.write(head("GET", "/health/live"))
        assert (await read_answer(reader)).status == 200


async def test_too_many_requests(launch):
    server = await launch(FakeBackend(lambda _: [3600.0]), max_in_flight=2)
    async with connect(server) as (_, one), connect(server) as (_, two):
        one.write(post(CHAT, chat_body()))
        two.write(post(CHAT, chat_body(stream=True)))
        await server.backend.until(lambda: len(server.backend.open) == 2)
        answer = await ask(server, post(CHAT, chat_body()))
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "overloaded", "1")
        assert (await get(server, "/health/live")).status == 200
    await server.backend.until(lambda: not server.backend.open)
    server.backend.script = lambda _: say("ok")
    assert (await ask(server, post(CHAT, chat_body()))).status == 200


async def test_many_large_bodies_cannot_take_all_memory(launch):
    """Each body is allowed; together they are above what is held at once."""
    server = await launch(max_body=MIB)
    size = MIB - 64
    async with AsyncExitStack() as stack:
        for _ in range(8):
            _, writer = await stack.enter_async_context(connect(server))
            writer.write(head("POST", CHAT, content_type="application/json", content_length=str(size)))
            writer.write(b" " * (size - 1))
            await writer.drain()
        await asyncio.sleep(0.1)
        answer = await ask(server, post(CHAT, b" " * size))
        assert (answer.status, answer.code) == (503, "overloaded")
        assert (await ask(server, post(CHAT, b" "))).status == 400
    await asyncio.sleep(0.1)
    assert (await ask(server, post(CHAT, b" " * size))).status == 400
