"""Files of images that clients sent, made into pixels: in processes of their own that may be killed.

Owns those processes (few, started with the first image, replaced when one is lost). Keeps nothing.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from stoker.models.vision.processor import ImageProcessor
from stoker.models.vision.task import Decoded, Task
from stoker.types.errors import ErrorKind, StokerError, invalid

COMMAND = (sys.executable, "-m", "stoker.models.vision.decode")
WORKERS = 2
WAITING = 256  # images at most, waiting or being decoded
SECONDS = 10.0  # for one image; the largest that is taken needs a second
START_SECONDS = 30.0  # to start a process, on a machine that is busy
MAX_ANSWER = 64 << 20  # bytes of pixels


class Pixels(NamedTuple):
    """uint8 [height, width, 3], row by row."""

    height: int
    width: int
    data: bytes


class Decoders:
    """`await decode(...)` in one event loop; `await close()` leaves no process."""

    def __init__(self, *, command: Sequence[str] = COMMAND) -> None:
        self._workers = [_Worker(command) for _ in range(WORKERS)]
        self._idle = list(self._workers)
        self._free = asyncio.Semaphore(WORKERS)
        self._waiting = 0

    async def decode(self, data: bytes, processor: ImageProcessor) -> Pixels:
        """Raises StokerError: INVALID if it is no image that is taken, CAPACITY if too many are to be decoded."""
        if self._waiting >= WAITING:
            raise StokerError(
                ErrorKind.CAPACITY, "image_queue_full", "Too many images are being decoded.", retry_after=2.0
            )
        self._waiting += 1
        try:
            async with self._free:
                worker = self._idle.pop()
                try:
                    return await worker.decode(data, processor)
                finally:
                    self._idle.append(worker)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        for worker in self._workers:
            await worker.end()


class _Worker:
    """One process at a time, started when it is needed."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._process: Process | None = None

    async def decode(self, data: bytes, processor: ImageProcessor) -> Pixels:
        """One call at a time."""
        process = self._process
        if process is None or process.returncode is not None:
            process = await self._start()
        try:
            async with asyncio.timeout(SECONDS):
                decoded, pixels = await _exchange(process, data, processor)
        except TimeoutError:
            await self.end()
            raise _unusable(f"it takes more than {SECONDS:g} seconds to decode") from None
        except (OSError, asyncio.IncompleteReadError, ValueError, msgspec.DecodeError):
            await self.end()
            raise _unusable("it cannot be decoded within bounds") from None
        except BaseException:  # its answer would be taken for that to the next question
            await self.end()
            raise
        if decoded.error is not None:
            raise _unusable(decoded.error)
        return Pixels(decoded.height, decoded.width, pixels)

    async def end(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()  # what it still had to say is read, or its pipe would stay open

    async def _start(self) -> Process:
        process = self._process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=PIPE)
        try:
            async with asyncio.timeout(START_SECONDS):
                await _read(process)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError, msgspec.DecodeError):
            await self.end()
            raise StokerError(ErrorKind.INTERNAL, "image_worker", "No image can be decoded at present.") from None
        except BaseException:
            await self.end()
            raise
        return process


async def _exchange(process: Process, data: bytes, processor: ImageProcessor) -> tuple[Decoded, bytes]:
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(Task(len(data), processor)) + b"\n")
    process.stdin.write(data)
    await process.stdin.drain()
    return await _read(process)


async def _read(process: Process) -> tuple[Decoded, bytes]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    decoded = msgspec.json.decode(line, type=Decoded)
    size = decoded.height * decoded.width * 3
    if not 0 <= size <= MAX_ANSWER:
        raise msgspec.DecodeError(f"{size} bytes of pixels")
    return decoded, await process.stdout.readexactly(size)


def _unusable(reason: str) -> StokerError:
    return invalid("invalid_image", f"The image cannot be used: {reason}.")
