"""One client for every server under test: /v1/completions with token-id prompts, streamed, timed as it arrives.

Owns the request and its timing. Does not know which server it talks to; `extra` carries a server's own parameters.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Self

import aiohttp
import msgspec

from bench.workloads import Agent, Concurrent, Prompts, Timing, Timings

REQUEST_SECONDS = 900.0
MAX_EVENT = 1 << 20


class BenchError(Exception):
    """A peer did not do what was asked of it; the message says which peer, what and why."""


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: _PromptDetails | None = None


class _Choice(msgspec.Struct):
    text: str = ""
    finish_reason: str | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_CHUNKS = msgspec.json.Decoder(_Chunk)


class Client:
    """Use as `async with`. A connection for each request: any number runs at once, and no server's way of ending
    kept connections plays a part."""

    def __init__(self, base: str, model: str, extra: dict[str, Any] | None = None) -> None:
        self._base = base
        self._model = model
        self._extra = extra or {}

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, force_close=True),
            timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS),
            read_bufsize=MAX_EVENT,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def answers(self, path: str) -> bool:
        """True when GET `path` gives 200 now; False on any other status or while nothing listens."""
        try:
            async with self._http.get(self._base + path, timeout=aiohttp.ClientTimeout(total=5)) as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def complete(self, prompt: Sequence[int], output: int, headers: dict[str, str] | None = None) -> Timing:
        """Have exactly `output` tokens made, greedily, for `prompt`.

        The first token counts as there when the first text (or the finish) arrives. Raises `BenchError` when the
        server refuses, breaks off, or counts other numbers of tokens than were asked for.
        """
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": output,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra,
        }
        start = time.perf_counter()
        first: float | None = None
        last = start
        usage: _Usage | None = None
        try:
            async with self._http.post(f"{self._base}/v1/completions", json=body, headers=headers) as response:
                if response.status != 200:
                    detail = (await response.text())[:400]
                    raise BenchError(f"POST /v1/completions answered {response.status}: {detail}")
                async for data in _events(response):
                    chunk = _CHUNKS.decode(data)
                    if chunk.error is not None:
                        raise BenchError(f"the stream ended in an error: {chunk.error}")
                    if any(choice.text or choice.finish_reason for choice in chunk.choices):
                        last = time.perf_counter()
                        first = last if first is None else first
                    usage = chunk.usage or usage
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError) as error:
            raise BenchError(f"POST /v1/completions broke off: {error!r}") from error
        if usage is None or first is None:
            raise BenchError("the stream carried no text or no usage")
        if (usage.prompt_tokens, usage.completion_tokens) != (len(prompt), output):
            raise BenchError(
                f"asked for {len(prompt)} in / {output} out, "
                f"the server counts {usage.prompt_tokens} / {usage.completion_tokens}"
            )
        details = usage.prompt_tokens_details
        return Timing(start, first, last, len(prompt), output, details.cached_tokens if details else None)


async def _events(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """The data of each server-sent event up to [DONE]; comments and other fields are passed over."""
    begun = b""
    async for received in response.content.iter_any():
        *lines, begun = (begun + received).split(b"\n")
        if len(begun) > MAX_EVENT:
            raise BenchError(f"a line of the stream is longer than {MAX_EVENT} bytes")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield data


async def run_single(client: Client, prompts: list[list[int]], output: int) -> Timings:
    """Workloads a and b: one after the other."""
    return Timings([await client.complete(prompt, output) for prompt in prompts])


async def run_concurrent(client: Client, sizes: Concurrent, prompts: Prompts) -> Timings:
    many = prompts.many("concurrent", sizes.count, sizes.prompt)
    return Timings(await asyncio.gather(*(client.complete(prompt, sizes.output) for prompt in many)))


async def run_agent(client: Client, sizes: Agent, prompts: Prompts) -> Timings:
    """All sessions at once; within a session each turn waits for the one before, as an agent's tool loop does."""

    async def session(index: int, turns: list[list[int]]) -> list[Timing]:
        headers = {"x-session-affinity": f"bench-{prompts.seed}-{index}"}
        return [await client.complete(turn, sizes.output, headers) for turn in turns]

    done = await asyncio.gather(*(session(index, turns) for index, turns in enumerate(prompts.agent(sizes))))
    return Timings([timing for timings in done for timing in timings])
