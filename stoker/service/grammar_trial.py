"""Grammars of clients, tried out before their requests are let in: in processes of their own that may be killed.

Owns those processes (few, started with the first grammar, replaced when one is lost) and remembers what was found.
Does not know what is in a grammar.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from stoker.models.source import ModelFiles
from stoker.types.errors import ErrorKind, StokerError, invalid

COMMAND = (sys.executable, "-m", "stoker.models.text.try_grammar")
WORKERS = 2
WAITING = 64  # trials at most, waiting or running
SECONDS = 3.0  # for one trial, which takes a tenth of a second where nobody means harm; 5 are promised in all
START_SECONDS = 30.0  # to start a process, on a machine that is busy
REMEMBERED = 4096

Verdict = int | str  # number of the grammar to use, or the reason why there is none


class GrammarTrial:
    """`await check(...)` in one event loop; `await close()` leaves no process."""

    def __init__(self, files: ModelFiles, *, command: Sequence[str] = COMMAND) -> None:
        self._workers = [_Worker(files, command) for _ in range(WORKERS)]
        self._idle = list(self._workers)
        self._free = asyncio.Semaphore(WORKERS)
        self._waiting = 0
        self._known: OrderedDict[bytes, Verdict] = OrderedDict()

    async def check(self, grammars: Sequence[str]) -> str:
        """The first of `grammars` that can be used. Raises StokerError: INVALID if none can, CAPACITY if too many are
        to be tried at present."""
        key = hashlib.sha256(msgspec.json.encode(grammars)).digest()
        verdict = self._known.get(key)
        if verdict is None:
            verdict = await self._try(grammars)
            self._known[key] = verdict
            while len(self._known) > REMEMBERED:
                self._known.popitem(last=False)
        if isinstance(verdict, str):
            raise invalid("invalid_grammar", f"The output cannot be constrained as asked: {verdict}.")
        return grammars[verdict]

    async def close(self) -> None:
        for worker in self._workers:
            await worker.end()

    async def _try(self, grammars: Sequence[str]) -> Verdict:
        if self._waiting >= WAITING:
            raise StokerError(
                ErrorKind.CAPACITY, "grammar_queue_full", "Too many new grammars are being tried out.", retry_after=5.0
            )
        self._waiting += 1
        try:
            async with self._free:
                worker = self._idle.pop()
                try:
                    return await worker.ask(grammars)
                finally:
                    self._idle.append(worker)
        finally:
            self._waiting -= 1


class _Worker:
    """One process at a time, started when it is needed."""

    def __init__(self, files: ModelFiles, command: Sequence[str]) -> None:
        self._files = msgspec.json.encode(files) + b"\n"
        self._command = command
        self._process: Process | None = None

    async def ask(self, grammars: Sequence[str]) -> Verdict:
        """What the process says, or that it had to be ended. One call at a time."""
        if self._process is None or self._process.returncode is not None:
            await self._start()
        try:
            async with asyncio.timeout(SECONDS):
                answer = await self._exchange(msgspec.json.encode(grammars) + b"\n")
        except TimeoutError:
            await self.end()
            return f"it is too complex to be ready within {SECONDS:g} seconds"
        except BaseException:  # its answer would be taken for that to the next question
            await self.end()
            raise
        if answer:
            return msgspec.json.decode(answer, type=Verdict)
        await self.end()
        return "it cannot be tried out within bounds"

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
        try:
            async with asyncio.timeout(START_SECONDS):
                ready = await self._exchange(self._files)
        except BaseException:
            await self.end()
            raise
        if not ready:
            await self.end()
            raise StokerError(ErrorKind.INTERNAL, "grammar_worker", "No grammar can be tried out at present.")

    async def _exchange(self, line: bytes) -> bytes:
        """A line there, a line back; b"" if the process is gone."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            await process.stdin.drain()
            return await process.stdout.readline()
        except (BrokenPipeError, ConnectionResetError):
            return b""
