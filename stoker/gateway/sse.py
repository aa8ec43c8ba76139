"""A stream of server-sent events: framing, heartbeats, and an end that the client can tell from a break."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from stoker.dialects.encoder import StreamEncoder
from stoker.gateway.http import FAREWELL_SECONDS, STOPPING, Exchange
from stoker.types.chat import Event
from stoker.types.errors import ErrorKind, StokerError

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # nginx would hold events back
]
_COMMENT = b": keep-alive\n\n"


def frame(data: bytes) -> bytes:
    """One event. `data` is JSON, so it has no line breaks."""
    return b"data: " + data + b"\n\n"


def named_frame(data: bytes) -> bytes:
    """One event under the name of its type: `data` starts with `{"type":"NAME"`."""
    return b"event: " + data[9 : data.index(b'"', 9)] + b"\n" + frame(data)


class EventStream:
    """Sends the events of one request.

    Nothing is sent before the first event or heartbeat, so an early error still gets its own HTTP status; later ones
    become an error event, after which the stream ends.
    """

    def __init__(self, exchange: Exchange, encoder: StreamEncoder, *, heartbeat: float) -> None:
        self._exchange = exchange
        self._encoder = encoder
        self._frame = named_frame if encoder.named else frame
        self._heartbeat = heartbeat
        self._free = asyncio.Event()  # nothing is being written; a lock would cost three coroutines a token
        self._free.set()
        self._last = time.monotonic()
        self._ended = False

    async def run(self, events: AsyncGenerator[Event]) -> None:
        """Send everything. Raises ClientGoneError if the client leaves, StokerError if generating failed."""
        await self._exchange.attend(self._pump(events), every=self._heartbeat / 2, tick=self._beat)

    async def _pump(self, events: AsyncGenerator[Event]) -> None:
        try:
            async with aclosing(events):
                async for event in events:
                    data = b"".join(map(self._frame, self._encoder.push(event)))
                    if data:
                        await self._write(data)
            await self._write(b"" if self._encoder.end is None else self._frame(self._encoder.end), last=True)
        except BaseException as error:
            farewell = self._farewell(error)
            if farewell is not None and self._exchange.status:
                await self._break(farewell)
            raise

    def _farewell(self, error: BaseException) -> StokerError | None:
        """What to tell the client; None if it is not there to hear it."""
        if isinstance(error, StokerError):
            return error
        if self._exchange.gone:
            return None
        if isinstance(error, asyncio.CancelledError):
            return STOPPING
        return StokerError(ErrorKind.INTERNAL, "internal_error", "An error on our side.")

    async def _break(self, error: StokerError) -> None:
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._write(self._frame(self._encoder.error(error)), last=True)
        except TimeoutError:
            pass  # it does not read any more; the connection is closed under it

    async def _beat(self) -> None:
        if time.monotonic() - self._last >= self._heartbeat and self._free.is_set():
            await self._write(_COMMENT)

    async def _write(self, data: bytes, *, last: bool = False) -> None:
        while not self._free.is_set():
            await self._free.wait()
        if self._ended:
            return
        self._ended = last
        self._free.clear()
        try:
            if not self._exchange.status:
                await self._exchange.begin(200, list(_HEADERS))
            await self._exchange.write(data, more=not last)
        finally:
            self._free.set()
        self._last = time.monotonic()
