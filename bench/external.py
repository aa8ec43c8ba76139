"""Stoker in front of a real vLLM: the same answers as from vLLM itself, cached tokens told, nothing left behind.

`python -m bench.external --json FILE`; needs `make bench-peer-vllm_cpu`. Holds (`ok`) when greedy completions through
Stoker equal vLLM's own, a second turn's cached tokens arrive, and a stream that its client left is gone from vLLM soon.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import openai

from bench.adapters import vllm_cpu
from bench.adapters.base import Missing, Server
from bench.client import BenchError, Client
from bench.convert import hf_folder
from bench.processes import free_port, running
from bench.workloads import Prompts

PEERS = Path(".peers")
PROMPTS = ("The capital of France is", "Water boils at", "def fibonacci(n):", "Once upon a time")
TOKENS = 48
START_SECONDS = 120.0
GONE_SECONDS = 10.0


async def measure(folder: Path, peer: Server) -> dict[str, Any]:
    async with peer.session(folder, Prompts("external")) as vllm:
        port = free_port()
        settings = folder / "stoker.toml"
        settings.write_text(
            f'[gateway]\nport = {port}\n[[models]]\nname = "demo"\nmodel = "{hf_folder(PEERS).resolve()}"\n'
            f'[[models.servers]]\nurl = "{vllm.base}"\nmodel = "demo"\n'
        )
        command = [sys.executable, "-m", "stoker.cli", "serve", str(settings), "--data-dir", str(folder / "data")]
        base = f"http://127.0.0.1:{port}"
        async with running(command, env={}, log=folder / "stoker.log", pipes=False) as process:
            await _ready(base, process)
            direct = openai.AsyncOpenAI(base_url=f"{vllm.base}/v1", api_key="none")
            through = openai.AsyncOpenAI(base_url=f"{base}/v1", api_key="none")
            same = [await _complete(direct, prompt) == await _complete(through, prompt) for prompt in PROMPTS]
            return {
                "same": same,
                "first_ms": {"vllm": await _first(direct), "stoker": await _first(through)},
                "cached": await _second_turn(through),
                "gone_seconds": await _leave(through, vllm.base),
            }


async def _ready(base: str, process: Any) -> None:
    end = time.perf_counter() + START_SECONDS
    async with Client(base, "demo", {}) as client:
        while not await client.answers("/health/ready"):
            if not process.alive or time.perf_counter() > end:
                raise BenchError(f"stoker is not ready\n{process.log_tail()}")
            await asyncio.sleep(0.05)


async def _complete(client: openai.AsyncOpenAI, prompt: str) -> str:
    answer = await client.completions.create(model="demo", prompt=prompt, max_tokens=TOKENS, temperature=0.0)
    return answer.choices[0].text


async def _first(client: openai.AsyncOpenAI) -> float:
    """Median milliseconds to the first chunk of a short prompt."""
    found: list[float] = []
    for number in range(9):
        start = time.perf_counter()
        stream = await client.completions.create(model="demo", prompt=f"{number} is", max_tokens=2, stream=True)
        async for _ in stream:
            found.append((time.perf_counter() - start) * 1000)
            break
        await stream.close()
    return round(statistics.median(found), 1)


async def _second_turn(client: openai.AsyncOpenAI) -> int:
    messages: Any = [{"role": "user", "content": "Tell me of the sea. " * 40}]
    first = await client.chat.completions.create(model="demo", messages=messages, max_tokens=8)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "Go on."},
    ]
    second = await client.chat.completions.create(model="demo", messages=messages, max_tokens=8)
    details = second.usage.prompt_tokens_details if second.usage else None
    return (details.cached_tokens or 0) if details else 0


async def _leave(client: openai.AsyncOpenAI, vllm: str) -> float | None:
    """Seconds until vLLM runs nothing any more after a client has left a long stream; None if that is too long."""
    stream = await client.completions.create(model="demo", prompt="Count:", max_tokens=4000, stream=True)
    async for _ in stream:
        break
    await stream.close()
    start = time.perf_counter()

    async with aiohttp.ClientSession() as session:
        while time.perf_counter() - start < GONE_SECONDS:
            async with session.get(f"{vllm}/metrics") as response:
                text = await response.text()
            running_now = re.findall(r"^vllm:num_requests_running\{.*\} ([0-9.]+)$", text, re.MULTILINE)
            if running_now and float(running_now[0]) == 0:
                return round(time.perf_counter() - start, 2)
            await asyncio.sleep(0.1)
    return None


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.external", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    peer = vllm_cpu.peer(PEERS)
    if isinstance(peer, Missing):
        print(peer.how, file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="stoker-external-") as name:
        found = asyncio.run(measure(Path(name), peer))
    ok = all(found["same"]) and found["cached"] > 0 and found["gone_seconds"] is not None
    first = found["first_ms"]
    figure = (
        f"{sum(found['same'])} of {len(PROMPTS)} greedy completions equal vLLM's own; first chunk after "
        f"{first['stoker']} ms ({first['vllm']} ms without Stoker); {found['cached']} cached tokens "
        f"in the second turn; a left stream was gone after {found['gone_seconds']} s"
    )
    print(figure)
    if options.json:
        options.json.write_text(json.dumps({"ok": ok, "figure": figure, **found}, indent=1))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
