"""Several engines behind one address: what a client sees of their lives, which shall be nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from e2e_server import Server

from stoker.models.source import ModelFiles


@pytest.fixture(scope="module")
def fleet(tiny_llama: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two engines of a tiny model in float32, so that the same request has the same answer on both."""
    flags = ("--model", tiny_llama.root, "--name", "tiny", "--replicas", "2", "--dtype", "float32")
    server = Server(tmp_path_factory.mktemp("fleet"), *flags).wait_ready()
    until(lambda: set(statuses(server).values()) == {"ready"})
    yield server
    server.stop()


def until(condition: Any, within: float = 60.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def replicas(server: Server) -> dict[str, Any]:
    with urllib.request.urlopen(f"{server.url}/health/ready", timeout=5.0) as response:
        return json.load(response)["models"]["tiny"]["replicas"]


def statuses(server: Server) -> dict[str, str]:
    return {name: replica["status"] for name, replica in replicas(server).items()}


def asked(number: int) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"Tell me about the number {number}, at length."}],
        "max_tokens": 200,
        "temperature": 1.0 if number % 2 else 0.0,
        "seed": number,
        "n": 2 if number == 3 else 1,
        "logprobs": number == 5,
        "extra_body": {"ignore_eos": True},
        "extra_headers": {"x-session-id": f"session {number}"},
    }


async def streamed(api: openai.AsyncOpenAI, number: int, seen: list[int] | None = None) -> tuple[Any, ...]:
    """Texts, log-probabilities and usage of one stream."""
    texts: dict[int, str] = {}
    logprobs: list[float] = []
    usage = None
    stream = await api.chat.completions.create(**asked(number), stream=True, stream_options={"include_usage": True})
    async for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            if choice.logprobs and choice.logprobs.content:
                logprobs += [token.logprob for token in choice.logprobs.content]
        usage = chunk.usage or usage
        if seen is not None:
            seen.append(number)
    assert usage is not None
    return texts, logprobs, usage.completion_tokens, usage.prompt_tokens


async def test_kill_9_under_streaming_load_is_not_seen(fleet: Server) -> None:
    async with openai.AsyncOpenAI(base_url=f"{fleet.url}/v1", api_key="none", max_retries=0, timeout=120.0) as api:
        quiet = [await streamed(api, number) for number in range(6)]
        seen: list[int] = []
        readers = [asyncio.create_task(streamed(api, number, seen)) for number in range(6)]
        while len(seen) < 200:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os.kill(fleet.engine_pids()[0], signal.SIGKILL)
        killed = await asyncio.gather(*readers)
    for (texts, logprobs, *usage), (quiet_texts, quiet_logprobs, *quiet_usage) in zip(killed, quiet, strict=True):
        assert texts == quiet_texts
        assert usage == quiet_usage
        assert logprobs == pytest.approx(quiet_logprobs, abs=1e-3)
    actions = [line.get("action") for line in fleet.lines()]
    assert "replay" in actions
    assert "engine_restart" in actions
    until(lambda: set(statuses(fleet).values()) == {"ready"})
    assert sum(replica.get("restarts", 0) for replica in replicas(fleet).values()) == 1
    assert sum(replica.get("in_flight", 0) for replica in replicas(fleet).values()) == 0
