"""Files read into the page cache ahead of whoever maps them, by several threads.

Owns the order and the bounds of the reading. What is mapped is read by page faults otherwise: one small request at a
time, from the one thread that builds the graph.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

WORKERS = 8
CHUNK = 16 << 20
LEAD = 1 << 30  # how far reading may be ahead of use: memory smaller than the weights must not drop what was read
_PATIENCE = 0.2  # seconds between two calls of `idle`


class ReadAhead:
    """Reads `files` from their starts, in order; what is needed earlier is read at once."""

    def __init__(self, files: Sequence[Path], *, workers: int = WORKERS, chunk: int = CHUNK, lead: int = LEAD) -> None:
        self._chunk = chunk
        self._lead = lead
        self._order = iter([(file, start) for file in files for start in range(0, file.stat().st_size, chunk)])
        self._reads: dict[tuple[Path, int], Future[None]] = {}
        self._used = 0
        self._buffers = threading.local()
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="weights")
        weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        self._extend()

    def need(self, file: Path, begin: int, end: int, idle: Callable[[], None]) -> None:
        """Returns once bytes [begin, end) of `file` are read, calling `idle` while it waits. Raises OSError."""
        for start in range(begin - begin % self._chunk, end, self._chunk):
            read = self._begin(file, start)
            while wait((read,), timeout=_PATIENCE).not_done:
                idle()
            read.result()
        self._used += end - begin
        self._extend()

    def _extend(self) -> None:
        while len(self._reads) * self._chunk < self._used + self._lead:
            place = next(self._order, None)
            if place is None:
                return
            self._begin(*place)

    def _begin(self, file: Path, start: int) -> Future[None]:
        read = self._reads.get((file, start))
        if read is None:
            read = self._reads[file, start] = self._pool.submit(_read, self._buffers, file, start, self._chunk)
        return read


def _read(buffers: threading.local, file: Path, start: int, size: int) -> None:
    """Not a method: the threads must not keep the reader alive."""
    buffer = getattr(buffers, "buffer", None)
    if buffer is None:
        buffer = buffers.buffer = bytearray(size)
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.preadv(descriptor, [buffer], start)
    finally:
        os.close(descriptor)
