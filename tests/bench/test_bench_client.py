"""The benchmark's client against a small server that counts, streams, refuses and lies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web

from bench.client import BenchError, Client, run_agent, run_concurrent, run_single
from bench.workloads import Agent, Concurrent, Prompts

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class FakeServer:
    """Knows which prompts it has seen, so its cached_tokens are what a perfect prefix cache would reach."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.sessions: list[str | None] = []
        self.active = 0
        self.most_active = 0
        self.missing_tokens = 0
        self.pause = 0.0
        self.status = 200
        self.broken_off = False

    async def complete(self, request: web.Request) -> web.StreamResponse:
        if self.status != 200:
            return web.json_response({"error": {"message": "no room"}}, status=self.status)
        body = json.loads(await request.read())
        prompt = body["prompt"]
        cached = max((_common(prompt, seen["prompt"]) for seen in self.bodies), default=0)
        self.bodies.append(body)
        self.sessions.append(request.headers.get("x-session-affinity"))
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b": still here\n\n")
        made = body["max_tokens"] - self.missing_tokens
        for index in range(made):
            await asyncio.sleep(self.pause)
            finish = "length" if index == made - 1 else None
            await self._event(response, {"choices": [{"text": " x", "finish_reason": finish}]})
            if self.broken_off:
                raise ConnectionResetError
        usage = {"prompt_tokens": len(prompt), "completion_tokens": made}
        await self._event(
            response, {"choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}}
        )
        await response.write(b"data: [DONE]\n\n")
        self.active -= 1
        return response

    async def _event(self, response: web.StreamResponse, value: dict[str, Any]) -> None:
        await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")


def _common(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@pytest.fixture
async def server() -> AsyncIterator[tuple[FakeServer, str]]:
    fake = FakeServer()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/completions", fake.complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield fake, f"http://127.0.0.1:{port}"
    await runner.cleanup()


async def test_times_and_counts_one_request(server: tuple[FakeServer, str]) -> None:
    fake, base = server
    fake.pause = 0.01
    async with Client(base, "m", {"top_k": 1}) as client:
        timings = await run_single(client, [[1, 2, 3], [1, 2, 4]], 5)
    body = fake.bodies[0]
    assert (body["model"], body["prompt"], body["max_tokens"], body["top_k"]) == ("m", [1, 2, 3], 5, 1)
    assert body["ignore_eos"] is True
    assert body["temperature"] == 0.0
    first, second = timings.requests
    assert (first.prompt, first.output, first.cached, second.cached) == (3, 5, 0, 2)
    assert first.first - first.start >= 0.01
    assert first.last - first.first >= 0.04
    assert second.start >= first.last


async def test_concurrent_requests_really_overlap(server: tuple[FakeServer, str]) -> None:
    fake, base = server
    fake.pause = 0.02
    async with Client(base, "m") as client:
        timings = await run_concurrent(client, Concurrent(count=12, prompt=4, output=3), Prompts("s"))
    assert fake.most_active == 12
    assert len(timings.requests) == 12


async def test_a_perfect_cache_reaches_the_ideal_share(server: tuple[FakeServer, str]) -> None:
    fake, base = server
    sizes = Agent(sessions=3, turns=4, prefix=50, tool=10, output=4)
    async with Client(base, "m") as client:
        timings = await run_agent(client, sizes, Prompts("s", 0, 1 << 60))
    assert timings.agent(sizes)["cached_of_ideal"] == pytest.approx(1.0)
    assert len(set(fake.sessions)) == 3
    assert None not in fake.sessions


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"status": 503}, "503.*no room"),
        ({"missing_tokens": 2}, "asked for 3 in / 5 out, the server counts 3 / 3"),
        ({"missing_tokens": 5}, "no text"),
        ({"broken_off": True}, "broke off"),
    ],
)
async def test_a_server_that_does_less_is_an_error(
    server: tuple[FakeServer, str], change: dict[str, Any], message: str
) -> None:
    fake, base = server
    for name, value in change.items():
        setattr(fake, name, value)
    async with Client(base, "m") as client:
        with pytest.raises(BenchError, match=message):
            await client.complete([1, 2, 3], 5)


async def test_not_listening_is_not_ready() -> None:
    async with Client("http://127.0.0.1:9", "m") as client:
        assert await client.answers("/health") is False
