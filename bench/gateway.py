"""Workload g: what a request costs outside the engine, which here answers at once.

Chat requests with real text, so template, tokenizer, service, transport and HTTP are all in it. Every text is new.
"""

from __future__ import annotations

import json
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
TOLERANCE = 0.1
REQUEST_SECONDS = 60.0


def text(seed: str, words: int) -> str:
    """Common words are one token each, so this is about `words` tokens long."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


async def measure(folder: Path) -> dict[str, float]:
    """Medians: milliseconds for a prompt of 1K and of 100K tokens with one token out, microseconds a streamed token."""
    server = Server(
        name="gateway",
        command=[sys.executable, "-m", "bench.gateway_host", "{port}"],
        model="demo",
        ready_path="/health/ready",
    )
    seed = str(time.time_ns())
    async with server.session(folder, Prompts(seed)) as session:
        url = f"{session.base}/v1/chat/completions"
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=REQUEST_SECONDS)) as http:
            await _whole(http, url, "warm-up", LONG)
            short = [await _whole(http, url, f"{seed}/s{index}", SHORT) for index in range(SHORT_RUNS)]
            long = [await _whole(http, url, f"{seed}/l{index}", LONG) for index in range(LONG_RUNS)]
            token = [await _stream(http, url, f"{seed}/t{index}") for index in range(5)]
    return {
        "gateway_1k_ms": statistics.median(short) * 1e3,
        "gateway_100k_ms": statistics.median(long) * 1e3,
        "gateway_token_us": statistics.median(token) * 1e6,
    }


def _body(seed: str, words: int, output: int) -> dict[str, Any]:
    message = {"role": "user", "content": text(seed, words)}
    return {"model": "demo", "messages": [message], "max_tokens": output, "temperature": 0}


async def _whole(http: aiohttp.ClientSession, url: str, seed: str, words: int) -> float:
    """Seconds for one request that is answered whole."""
    body = json.dumps(_body(seed, words, 1)).encode()
    start = time.perf_counter()
    async with http.post(url, data=body, headers={"content-type": "application/json"}) as response:
        data = await response.read()
        elapsed = time.perf_counter() - start
        if response.status != 200:
            raise BenchError(f"the gateway answered {response.status}: {data[:400].decode(errors='replace')}")
    tokens = msgspec.json.decode(data)["usage"]["prompt_tokens"]
    if abs(tokens - words) > TOLERANCE * words:
        raise BenchError(f"the prompt should have about {words} tokens and has {tokens}")
    return elapsed


async def _stream(http: aiohttp.ClientSession, url: str, seed: str) -> float:
    """Seconds a token from the first byte of a stream to its end, the tokens coming as fast as they are taken."""
    body = {**_body(seed, SHORT, STREAMED), "stream": True}
    async with http.post(url, json=body) as response:
        begin = await response.content.readany()
        first = time.perf_counter()
        rest = await response.read()
        elapsed = time.perf_counter() - first
    if b"[DONE]" not in begin + rest:
        raise BenchError("the gateway's stream has no end")
    return elapsed / STREAMED
