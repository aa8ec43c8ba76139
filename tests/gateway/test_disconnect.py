"""A client that goes away stops its generation: before the first byte, in the middle, while queued, while rendering."""

from __future__ import annotations

import asyncio
import time

import pytest
from front_fakes import BIG, FakeBackend, say
from raw_http import CHAT, chat_body, connect, post, read_head

FOREVER = 3600.0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 3])
async def test_before_the_first_byte(launch, stream, n):
    server = await launch(FakeBackend(lambda _: [FOREVER]))
    async with connect(server) as (_, writer):
        writer.write(post(CHAT, chat_body(stream=stream, n=n)))
        await server.backend.until(lambda: len(server.backend.open) == n)
    await server.backend.until(lambda: not server.backend.open, within=2.0)
    assert len(server.backend.aborted) == n


@pytest.mark.parametrize("n", [1, 3])
async def test_in_the_middle_of_a_stream(launch, n):
    server = await launch(FakeBackend(lambda _: say("x" * 100_000, pause=0.001)))
    async with connect(server) as (reader, writer):
        writer.write(post(CHAT, chat_body(stream=True, n=n)))
        await server.backend.until(lambda: len(server.backend.open) == n)
        await read_head(reader)
        await reader.readexactly(2000)
    await server.backend.until(lambda: not server.backend.open, within=2.0)
    assert len(server.backend.aborted) == n


async def test_in_the_middle_of_a_whole_answer(launch):
    server = await launch(FakeBackend(lambda _: [b"some", b"thing", FOREVER]))
    async with connect(server) as (_, writer):
        writer.write(post(CHAT, chat_body()))
        await server.backend.until(lambda: len(server.backend.open) == 1)
        await asyncio.sleep(0.05)
    await server.backend.until(lambda: not server.backend.open, within=2.0)


async def test_while_the_prompt_is_rendered(launch):
    """Nothing reaches the engine for a client that left before its prompt was ready."""
    server = await launch()
    render, started = server.text.render, asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(request, **options):
        loop.call_soon_threadsafe(started.set)
        time.sleep(0.2)
        return render(request, **options)

    server.text.render = slow
    async with connect(server) as (_, writer):
        writer.write(post(CHAT, chat_body(stream=True)))
        await started.wait()
    await asyncio.sleep(0.4)
    assert server.backend.requests == []


async def test_a_thousand_random_leavings_leave_nothing_open(launch):
    server = await launch(FakeBackend(lambda _: say("word " * 20, size=5, pause=0.002)))

    async def visit(number: int) -> None:
        async with connect(server) as (_, writer):
            writer.write(post(CHAT, chat_body(stream=bool(number % 3), n=1 + number % 2)))
            await asyncio.sleep(number % 23 * 0.002)

    for start in range(0, 1000, 100):
        await asyncio.gather(*(visit(number) for number in range(start, start + 100)))
    await server.backend.until(lambda: not server.backend.open)


async def test_a_reader_that_stalls_is_cut(launch):
    server = await launch(FakeBackend(lambda _: [[BIG], 0.0] * 2_000 + ["stop"]), body_timeout=0.3)
    async with connect(server) as (_, writer):
        writer.write(post(CHAT, chat_body(stream=True)))
        await server.backend.until(lambda: len(server.backend.open) == 1)
        await server.backend.until(lambda: not server.backend.open)
    assert len(server.backend.aborted) == 1


async def test_an_error_in_one_choice_ends_all(launch):
    def script(request):
        return [b"abc", "error"] if request.id.endswith("/1") else say("x" * 100_000, pause=0.001)

    server = await launch(FakeBackend(script))
    async with connect(server) as (reader, writer):
        writer.write(post(CHAT, chat_body(n=3)))
        assert (await read_head(reader))[0] == 500
    await server.backend.until(lambda: not server.backend.open, within=2.0)
    assert len(server.backend.aborted) == 2
