"""What a peer is to the harness, and the two shapes all of them have: an HTTP server, or a worker in-process.

Owns start, readiness, the order of measuring and the end. Workload sizes and arithmetic live in `bench.workloads`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from bench.client import BenchError, Client, run_agent, run_concurrent, run_single
from bench.processes import Process, free_port, running
from bench.workloads import Prompts, Sizes

START_SECONDS = 600.0
WORK_SECONDS = 1800.0
POLL_SECONDS = 0.02
FIRST_PROMPT = 16
MIB = 1 << 20


class Runner(Protocol):
    """A started peer. `run` takes one of a, b, c, d and gives its metrics, or None where the peer cannot do it."""

    async def run(self, workload: str, sizes: Sizes, prompts: Prompts) -> dict[str, float] | None: ...


@dataclass
class Session:
    """A peer between start and stop: how long the first token took, the process whose memory counts, and for a server
    the URL that its paths follow."""

    runner: Runner
    process: Process
    cold_s: float
    base: str = ""


class Peer(Protocol):
    """One contestant, ready to be started."""

    @property
    def name(self) -> str: ...

    def session(self, folder: Path, prompts: Prompts) -> AbstractAsyncContextManager[Session]:
        """Start it and have its first token made. `folder` is scratch space that outlives the session."""
        ...


@dataclass(frozen=True)
class Missing:
    """A peer that cannot run here; `how` says how to get it."""

    name: str
    how: str


@dataclass(frozen=True)
class Server:
    """A peer that speaks the OpenAI protocol. `command` gets {port} and {folder} filled in."""

    name: str
    command: list[str]
    model: str
    ready_path: str = "/v1/models"
    env: dict[str, str] = field(default_factory=dict[str, str])
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    @asynccontextmanager
    async def session(self, folder: Path, prompts: Prompts) -> AsyncGenerator[Session]:
        port = free_port()
        command = [part.format(port=port, folder=folder) for part in self.command]
        base = f"http://127.0.0.1:{port}"
        start = time.perf_counter()
        async with (
            running(command, env=self.env, log=folder / f"{self.name}.log", pipes=False) as process,
            Client(base, self.model, self.extra) as client,
        ):
            while not await client.answers(self.ready_path):
                if not process.alive:
                    raise BenchError(f"{self.name} ended while starting\n{process.log_tail()}")
                if time.perf_counter() - start > START_SECONDS:
                    raise BenchError(f"{self.name} is not ready after {START_SECONDS:.0f} s\n{process.log_tail()}")
                await asyncio.sleep(POLL_SECONDS)
            first = await client.complete(prompts.ids("first", FIRST_PROMPT), 1)
            yield Session(_ServerRunner(client), process, first.first - start, base)


class _ServerRunner:
    def __init__(self, client: Client) -> None:
        self._client = client

    async def run(self, workload: str, sizes: Sizes, prompts: Prompts) -> dict[str, float] | None:
        client = self._client
        match workload:
            case "warm-up":
                await run_single(client, prompts.many("warm-up", 1, sizes.single.prompt), 8)
                return {}
            case "a":
                one = sizes.single
                return (await run_single(client, prompts.many("single", one.repeats, one.prompt), one.output)).single()
            case "b":
                one = sizes.prefill
                many = prompts.many("prefill", one.repeats, one.prompt)
                return (await run_single(client, many, one.output)).prefill()
            case "c":
                return (await run_concurrent(client, sizes.concurrent, prompts)).concurrent()
            case "d":
                return (await run_agent(client, sizes.agent, prompts)).agent(sizes.agent)
            case _:
                raise ValueError(f"no workload {workload!r}")


@dataclass(frozen=True)
class Worker:
    """A peer that is a library: `module` runs in the peer's own `python` and answers as bench.workers.loop does."""

    name: str
    python: Path
    module: str
    model: Path
    env: dict[str, str] = field(default_factory=dict[str, str])

    @asynccontextmanager
    async def session(self, folder: Path, prompts: Prompts) -> AsyncGenerator[Session]:
        start = time.perf_counter()
        command = [str(self.python), "-m", self.module, str(self.model)]
        async with running(command, env=self.env, log=folder / f"{self.name}.log", pipes=True) as process:
            runner = _WorkerRunner(process)
            await runner.ask({"prompt": prompts.ids("first", FIRST_PROMPT)}, START_SECONDS)
            yield Session(runner, process, time.perf_counter() - start)


class _WorkerRunner:
    def __init__(self, process: Process) -> None:
        self._process = process

    async def ask(self, question: dict[str, Any], seconds: float) -> dict[str, float] | None:
        await self._process.write_line(json.dumps(question).encode())
        answer = json.loads(await self._process.read_line(seconds))
        if "error" in answer:
            raise BenchError(answer["error"])
        return answer["result"]

    async def run(self, workload: str, sizes: Sizes, prompts: Prompts) -> dict[str, float] | None:
        question = {"workload": workload, "sizes": asdict(sizes), "prompts": asdict(prompts)}
        return await self.ask(question, WORK_SECONDS)


def memory_metrics(process: Process) -> dict[str, float]:
    """Workload f, read after the others. Empty where memory cannot be read."""
    after = process.memory()
    if after == 0:
        return {}
    return {"peak_mib": max(process.peak_bytes, after) / MIB, "after_mib": after / MIB}
