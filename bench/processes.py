"""Processes under test: started in a session of their own, watched for memory, ended whole.

Memory is the proportional set size (PSS: shared pages are counted once over the tree). Reading it walks page tables,
so the sampler reads the cheap resident size often and PSS only when that has grown. Memory is known on Linux only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from bench.client import BenchError

PAGE = os.sysconf("SC_PAGE_SIZE")
SAMPLE_SECONDS = 0.5
GROWTH = 1.02
TERM_SECONDS = 8.0
KILL_SECONDS = 5.0
KILL_POLLS = 200
LINE_LIMIT = 1 << 20
PROC = Path("/proc")


def free_port() -> int:
    """A loopback port nobody listens on now. Another process could take it before its user does: rare, and seen."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def living() -> dict[int, tuple[int, int]]:
    """All processes but zombies: pid -> (parent, session)."""
    found: dict[int, tuple[int, int]] = {}
    for folder in PROC.glob("[0-9]*"):
        with suppress(OSError):
            # pid (name, which may hold anything) state ppid pgrp session ...
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if fields[0] != "Z":
                found[int(folder.name)] = (int(fields[1]), int(fields[3]))
    return found


def process_tree(root: int) -> list[int]:
    """`root`, its descendants, and whoever shares a session with one of them (a child keeps its session when its
    parent is gone, and its parent when it opens a session of its own)."""
    processes = living()
    known = {root}
    while grown := {pid for pid, (parent, session) in processes.items() if parent in known or session in known} - known:
        known |= grown
    return sorted(known & processes.keys())


def resident_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with suppress(OSError):
            total += int((PROC / str(pid) / "statm").read_text().split()[1]) * PAGE
    return total


def proportional_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


class Process:
    """A started program with all its descendants."""

    def __init__(self, inner: asyncio.subprocess.Process, log: Path) -> None:
        self._inner = inner
        self._log = log
        self._peak_resident = 0.0
        self.peak_bytes = 0

    @property
    def pid(self) -> int:
        return self._inner.pid

    @property
    def alive(self) -> bool:
        return self._inner.returncode is None

    def log_tail(self, lines: int = 12) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-lines:])

    def memory(self) -> int:
        """PSS of the tree now, in bytes; 0 where it cannot be read."""
        return proportional_bytes(process_tree(self.pid))

    async def watch_memory(self) -> None:
        """Keep `peak_bytes` up to date until cancelled."""
        while True:
            members = process_tree(self.pid)
            resident = resident_bytes(members)
            if resident > self._peak_resident * GROWTH:
                self._peak_resident = resident
                self.peak_bytes = max(self.peak_bytes, proportional_bytes(members))
            await asyncio.sleep(SAMPLE_SECONDS)

    async def write_line(self, line: bytes) -> None:
        assert self._inner.stdin is not None
        self._inner.stdin.write(line + b"\n")
        await self._inner.stdin.drain()

    async def read_line(self, seconds: float) -> bytes:
        """The next line of standard output. Raises `BenchError` at its end or after `seconds`."""
        assert self._inner.stdout is not None
        try:
            line = await asyncio.wait_for(self._inner.stdout.readline(), seconds)
        except TimeoutError:
            raise BenchError(f"no answer within {seconds:.0f} s\n{self.log_tail()}") from None
        if not line:
            raise BenchError(f"the process ended\n{self.log_tail()}")
        return line

    async def stop(self) -> None:
        """Ask the first process to end, then kill whatever is left of its tree, and wait until all are gone."""
        tree = set(process_tree(self.pid))
        with suppress(ProcessLookupError):
            self._inner.send_signal(signal.SIGTERM)
        with suppress(TimeoutError):
            await asyncio.wait_for(self._inner.wait(), TERM_SECONDS)
        tree.update(process_tree(self.pid))
        for pid in tree:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.alive:
            self._inner.kill()
        await self._inner.wait()
        for _ in range(KILL_POLLS):
            if not tree & living().keys():
                break
            await asyncio.sleep(KILL_SECONDS / KILL_POLLS)


@asynccontextmanager
async def running(command: list[str], *, env: dict[str, str], log: Path, pipes: bool) -> AsyncGenerator[Process]:
    """Run `command` in a new session until the block ends; its output goes to `log`, or stdout to a pipe."""
    with log.open("wb") as sink:
        inner = await asyncio.create_subprocess_exec(
            *command,
            env={**os.environ, **env},
            stdin=asyncio.subprocess.PIPE if pipes else asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE if pipes else sink,
            stderr=sink,
            start_new_session=True,
            limit=LINE_LIMIT,
        )
    process = Process(inner, log)
    watcher = asyncio.create_task(process.watch_memory())
    try:
        yield process
    finally:
        watcher.cancel()
        with suppress(asyncio.CancelledError):
            await watcher
        await process.stop()
