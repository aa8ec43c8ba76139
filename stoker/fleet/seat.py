"""Where the lives of an engine take place: a child process here, or a process that a cluster finds room for.

Owns one life: a place for its socket, the process, its end. Whether there is another life is the supervisor's business.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from stoker.engine.curve import Curve
from stoker.engine.spec import EngineSpec

ENGINE_COMMAND = (sys.executable, "-m", "stoker.engine")


class Address(NamedTuple):
    """Where the engine will listen; with keys for both sides where others could listen in."""

    endpoint: str
    engine: Curve | None = None
    client: Curve | None = None


class Seat(Protocol):
    """One life of one engine process: `open`, `run`, `close`, in this order; `kill` at any time."""

    @property
    def pid(self) -> int | None:
        """The engine's process id, while it runs on this host."""
        ...

    async def open(self) -> Address:
        """Find a place; may take as long as a cluster has none. Raises OSError where none can be had."""
        ...

    async def run(self, spec: EngineSpec) -> str:
        """Returns when the process has ended, with the reason for a person."""
        ...

    def kill(self) -> None:
        """End it now; `open` or `run` returns or raises soon."""
        ...

    async def close(self) -> None:
        """Leave nothing behind."""
        ...


class LocalSeat:
    """A child process in a process group of its own, with a socket in a folder that only this user can enter."""

    def __init__(self, command: Sequence[str] = ENGINE_COMMAND) -> None:
        self._command = command
        self._folder: Path | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def open(self) -> Address:
        self._folder = Path(tempfile.mkdtemp(prefix="stoker-"))  # 0700
        return Address(f"ipc://{self._folder}/engine")

    async def run(self, spec: EngineSpec) -> str:
        self._process = await start_engine(self._command)
        return await end_of(self._process, spec)

    def kill(self) -> None:
        if self._process:
            kill_group(self._process)

    async def close(self) -> None:
        if self._process and self._process.returncode is None:
            kill_group(self._process)
            await self._process.wait()
        self._process = None
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)


async def start_engine(command: Sequence[str]) -> asyncio.subprocess.Process:
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)


async def end_of(process: asyncio.subprocess.Process, spec: EngineSpec) -> str:
    """Give an engine its specification and wait until it has ended; returns the reason that it gave, or its status."""
    said, _ = await process.communicate(msgspec.json.encode(spec))
    return said.decode(errors="replace").strip() or _exit_reason(await process.wait())


def kill_group(process: asyncio.subprocess.Process) -> None:
    """The engine and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"the engine ended with status {code}"
    name = signal.Signals(-code).name
    hint = ", perhaps out of memory" if name == "SIGKILL" else ""
    return f"the engine was killed by {name}{hint}"


MakeSeat = Callable[[], Seat]
