"""Workload g: what a request costs outside the engine, which here answers at once.

Chat requests with real text, so template, tokenizer, service, transport and HTTP are all in it. Every text is new, but
for the history of `gateway_again_ms`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench.adapters.base import Server
from bench.client import BenchError
from bench.workloads import Prompts

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "for",
    "on",
    "are",
    "as",
    "with",
    "they",
    "at",
    "be",
    "this",
    "from",
    "have",
    "or",
    "by",
    "one",
    "had",
    "not",
    "but",
    "what",
    "all",
    "were",
    "when",
    "we",
    "there",
    "can",
    "an",
    "your",
    "which",
    "their",
    "said",
    "if",
    "do",
    "will",
    "each",
    "about",
    "how",
    "up",
    "out",
    "them",
    "then",
    "she",
    "many",
    "some",
    "so",
    "these",
    "would",
]
SHORT, SHORT_RUNS = 1_000, 40
LONG, LONG_RUNS = 100_000, 7
STREAMED = 1_000
STREAMS, STREAM_TOKENS = 32, 400
PACE = 0.02  # seconds a step of the fake engine while many streams are measured: a fast engine's
TOLERANCE = 0.1
REQUEST_SECONDS = 60.0
TICK = os.sysconf("SC_CLK_TCK")


def text(seed: str, words: int) -> str:
    """Common words are one token each, so this is about `words` tokens long."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


async def measure(folder: Path) -> dict[str, float]:
    """Medians: milliseconds for a prompt of 1K and of 100K tokens with one token out, microseconds a streamed token.

    What ends in `cpu` is the server process's own processor time, which hardly depends on what else runs. `PACE` lets
    it get cold between steps, as it does beside a real engine.
    """
    seed = str(time.time_ns())
    async with _host().session(folder, Prompts(seed)) as session, _http() as http:
        pid = session.process.pid
        url = f"{session.base}/v1/chat/completions"
        await _whole(http, url, "warm-up", LONG)
        spent = [cpu_seconds(pid)]
        short = [await _whole(http, url, f"{seed}/s{index}", SHORT) for index in range(SHORT_RUNS)]
        spent.append(cpu_seconds(pid))
        long = [await _whole(http, url, f"{seed}/l{index}", LONG) for index in range(LONG_RUNS)]
        spent.append(cpu_seconds(pid))
        again = [await _whole(http, url, f"{seed}/l0", LONG, index) for index in range(LONG_RUNS)]
        token = [await _stream(http, url, f"{seed}/t{index}", STREAMED) for index in range(5)]
    async with _host("--pace", str(PACE)).session(folder, Prompts(seed)) as session, _http() as http:
        pid = session.process.pid
        url = f"{session.base}/v1/chat/completions"
        await asyncio.gather(*(_stream(http, url, f"{seed}/w{index}", 2) for index in range(STREAMS)))
        before = cpu_seconds(pid)
        await asyncio.gather(*(_stream(http, url, f"{seed}/m{index}", STREAM_TOKENS) for index in range(STREAMS)))
        many = cpu_seconds(pid) - before
    return {
        "gateway_1k_ms": statistics.median(short) * 1e3,
        "gateway_100k_ms": statistics.median(long) * 1e3,
        "gateway_again_ms": statistics.median(again) * 1e3,
        "gateway_1k_cpu_ms": (spent[1] - spent[0]) / SHORT_RUNS * 1e3,
        "gateway_100k_cpu_ms": (spent[2] - spent[1]) / LONG_RUNS * 1e3,
        "gateway_token_us": statistics.median(token) * 1e6,
        "gateway_token_cpu_us": many / (STREAMS * STREAM_TOKENS) * 1e6,
    }


def cpu_seconds(pid: int) -> float:
    """Processor time of one process and all its threads so far, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def _host(*options: str) -> Server:
    command = [sys.executable, "-m", "bench.gateway_host", "{port}", *options]
    return Server(name="gateway", command=command, model="demo", ready_path="/health/ready")


def _http() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS), connector=aiohttp.TCPConnector(limit=0)
    )


def _body(seed: str, words: int, output: int, turns: int = 0) -> dict[str, Any]:
    """`turns` short ones follow the long first message."""
    later = [text(f"{seed}/{turn}", SHORT // 10) for turn in range(2 * turns)]
    messages = [
        {"role": ("user", "assistant")[place % 2], "content": content}
        for place, content in enumerate([text(seed, words), *later])
    ]
    return {"model": "demo", "messages": messages, "max_tokens": output, "temperature": 0}


async def _whole(http: aiohttp.ClientSession, url: str, seed: str, words: int, turns: int = 0) -> float:
    """Seconds for one request that is answered whole."""
    body = json.dumps(_body(seed, words, 1, turns)).encode()
    start = time.perf_counter()
    async with http.post(url, data=body, headers={"content-type": "application/json"}) as response:
        data = await response.read()
        elapsed = time.perf_counter() - start
        if response.status != 200:
            raise BenchError(f"the gateway answered {response.status}: {data[:400].decode(errors='replace')}")
    tokens = msgspec.json.decode(data)["usage"]["prompt_tokens"]
    asked = words + 2 * turns * (SHORT // 10)
    if abs(tokens - asked) > TOLERANCE * asked:
        raise BenchError(f"the prompt should have about {asked} tokens and has {tokens}")
    return elapsed


async def _stream(http: aiohttp.ClientSession, url: str, seed: str, tokens: int) -> float:
    """Seconds a token from the first byte of a stream to its end."""
    body = {**_body(seed, SHORT, tokens), "stream": True}
    async with http.post(url, json=body) as response:
        begin = await response.content.readany()
        first = time.perf_counter()
        rest = await response.read()
        elapsed = time.perf_counter() - first
    if b"[DONE]" not in begin + rest:
        raise BenchError("the gateway's stream has no end")
    return elapsed / tokens
