"""The asyncio side of an engine process: sends requests, sorts what comes back by request.

Owns one DEALER socket and the table of open requests. Does not own the process, restarts or state shown to people
(fleet/supervisor.py does), and never imports torch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress

import msgspec
import zmq

from stoker.engine.curve import Curve, connect_with
from stoker.engine.feed import Feed
from stoker.types.errors import ErrorKind, LostError, StokerError
from stoker.types.wire import (
    Abort,
    EngineStats,
    FromEngine,
    Generate,
    Hello,
    ImagePixels,
    ImagesWanted,
    KVEvents,
    KVNews,
    KVSnapshot,
    Loading,
    Progress,
    Ready,
    Refused,
    Shutdown,
    Step,
    Subscribe,
    ToEngine,
)

HELLO_SECONDS = 1.0
SEND_QUEUE = 4096  # messages waiting for a stuck engine before new requests are refused
MESSAGES_PER_TURN = 64  # read before others get the event loop

Status = Loading | Ready
Pixels = Callable[[bytes], Awaitable[bytes]]

log = logging.getLogger(__name__)


class EngineClient:
    """One connection to one engine process. Create and use it inside one running event loop.

    `on_status` is called with every `Loading` and the first `Ready`. A second `Ready` means that the
    engine had given this client up (it read too slowly or was silent for too long): its open requests then fail.

    With `on_kv` the engine's KV events are subscribed to, again whenever some were missed: what it is called with is
    always a snapshot part by part, then events without a gap, then perhaps another snapshot. It must not raise.

    `pixels` gives those of an image of an open request when the engine asks for them, b"" if there is none.
    """

    def __init__(
        self,
        endpoint: str,
        on_status: Callable[[Status], None],
        *,
        curve: Curve | None = None,
        on_kv: Callable[[KVNews], None] | None = None,
        pixels: Pixels | None = None,
    ) -> None:
        self.stats: EngineStats | None = None
        self._on_status = on_status
        self._on_kv = on_kv
        self._pixels = pixels
        self._sending: set[asyncio.Task[None]] = set()  # pixels that the engine asked for
        self._feed = Feed()
        self._heard = float("-inf")
        self._ready = False
        self._open: dict[str, _Inbox] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
        connect_with(self._socket, curve)
        self._socket.connect(endpoint)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.FD, self._read)
        self._greeter = asyncio.create_task(self._greet())

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the engine's loop last showed that it moves."""
        return time.monotonic() - self._heard

    async def generate(self, request: Generate) -> AsyncGenerator[Progress]:
        """See `Backend.generate`. Leaving early aborts the request in the engine."""
        if request.id in self._open:
            raise StokerError(ErrorKind.INTERNAL, "duplicate_request", f"request id {request.id} is in use")
        inbox = self._open[request.id] = _Inbox()
        finished = False
        try:
            self._send(request)
            while not finished:
                item = await inbox.get()
                if isinstance(item, StokerError):
                    finished = True
                    raise item
                finished = item.finish is not None
                yield item
        finally:
            self._open.pop(request.id, None)
            if not finished:
                with suppress(StokerError):
                    self._send(Abort(id=request.id))

    def fail(self, error: StokerError) -> None:
        """End every open request with `error`: the engine is gone."""
        for inbox in self._open.values():
            inbox.put(error)

    def subscribe(self) -> None:
        """Ask for a new snapshot, if there is a reader for it and the engine serves."""
        if self._on_kv and self._ready:
            self._feed.restart()
            with suppress(StokerError):  # the feed notices that nothing comes
                self._send(Subscribe())

    def shutdown(self) -> None:
        """Ask the process to end; it may already be gone."""
        with suppress(StokerError):
            self._send(Shutdown())

    async def close(self) -> None:
        tasks = [self._greeter, *self._sending]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._loop.remove_reader(self._socket.FD)
        self._socket.close(0)
        self._context.term()

    def _send(self, message: ToEngine) -> None:
        try:
            self._socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            raise StokerError(
                ErrorKind.CAPACITY, "engine_stuck", "The engine does not take requests at present.", retry_after=5.0
            ) from None
        self._loop.call_soon(self._read)  # sending may have swallowed the signal that something has come

    async def _greet(self) -> None:
        """Introduce this client until answered, then show each second that it lives."""
        while True:
            with suppress(StokerError):
                self._send(Hello())
            await asyncio.sleep(HELLO_SECONDS if self._ready else 0.05)

    def _read(self) -> None:
        """Take what has come. The socket's descriptor signals a change and not a state, so it is read until empty."""
        if self._socket.closed:
            return
        for _ in range(MESSAGES_PER_TURN):
            try:
                self._handle(self._decoder.decode(self._socket.recv(zmq.NOBLOCK)))
            except zmq.Again:
                return
        self._loop.call_soon(self._read)

    def _handle(self, message: FromEngine) -> None:
        self._heard = time.monotonic()
        match message:
            case Step():
                for progress in message.progress:
                    self._deliver(progress.id, progress)
            case EngineStats():
                self.stats = message
                if self._on_kv and self._feed.behind(message.kv_seq):
                    self.subscribe()
            case KVSnapshot() | KVEvents():
                if self._on_kv and self._feed.take(message):
                    self._on_kv(message)
            case ImagesWanted():
                for digest in message.digests:
                    task = asyncio.create_task(self._send_pixels(digest))
                    self._sending.add(task)
                    task.add_done_callback(self._sending.discard)
            case Refused():
                error = StokerError(
                    ErrorKind(message.kind), message.code, message.message, retry_after=message.retry_after
                )
                self._deliver(message.id, error)
            case Ready() if self._ready:
                self.fail(_forgotten())
                self.subscribe()
            case Loading() | Ready():
                self._ready = isinstance(message, Ready)
                self._on_status(message)
                self.subscribe()

    async def _send_pixels(self, digest: bytes) -> None:
        """An answer in any case: the engine asks once, and what waits for the image would wait for ever."""
        pixels = b""
        try:
            pixels = b"" if self._pixels is None else await self._pixels(digest)
        except StokerError as error:
            log.warning("an image is not to be had: %s", error, extra={"action": "image_lost"})
        except Exception:
            log.exception("an image is not to be had", extra={"action": "image_lost"})
        with suppress(StokerError):  # an engine that takes nothing is noticed by its silence
            self._send(ImagePixels(digest=digest, pixels=pixels))

    def _deliver(self, request_id: str, item: Progress | StokerError) -> None:
        """Late tokens of a request that was left are dropped: its abort is under way."""
        if inbox := self._open.get(request_id):
            inbox.put(item)


class _Inbox:
    """What has come for one request, which one task reads. An asyncio.Queue without what it has for several readers
    and for bounds: an output is bounded already."""

    def __init__(self) -> None:
        self._items: deque[Progress | StokerError] = deque()
        self._news: asyncio.Future[None] | None = None

    def put(self, item: Progress | StokerError) -> None:
        self._items.append(item)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def get(self) -> Progress | StokerError:
        while not self._items:
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        return self._items.popleft()


def _forgotten() -> LostError:
    message = "The engine dropped this request because its reader stood still."
    return LostError("engine_lost_client", message, suspect=False)
