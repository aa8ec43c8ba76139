"""The engine process: one thread, one loop. Takes messages, runs one step, sends what came of it, beats.

Owns the socket and the clients' connections; engine/core.py owns everything about sequences. A client is a process
that said `Hello`; one that falls silent or does not read is forgotten and its requests are aborted, so a killed
gateway leaves nothing behind. When the parent process is gone the engine ends.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import zmq

from stoker.engine.build import build_core
from stoker.engine.core import EngineCore
from stoker.engine.curve import guard
from stoker.engine.spec import EngineSpec
from stoker.models.source import ModelError
from stoker.obs.log import setup
from stoker.types.errors import ErrorKind
from stoker.types.wire import (
    Abort,
    FromEngine,
    Generate,
    Hello,
    ImagePixels,
    ImagesWanted,
    Loading,
    Ready,
    Refused,
    Shutdown,
    Step,
    Subscribe,
    ToEngine,
)

HEARTBEAT_SECONDS = 0.5
COMPILE_POLL_SECONDS = 0.002  # how soon a grammar that has become ready is noticed while nothing else is to be done
CLIENT_SILENCE_SECONDS = 15.0
LONG_STEP_SECONDS = 0.5  # a step that is predicted to take longer is announced
OUTBOX_MESSAGES = 8192  # steps a client may lag behind before it is forgotten
KV_OUTBOX_MESSAGES = 512  # messages a subscriber may lag behind before it gets no more KV events
MESSAGES_PER_STEP = 512  # taken from the socket between two steps, so a flood cannot stop the model
MAX_MESSAGE_BYTES = 64 << 20

log = logging.getLogger(__name__)


@dataclass
class Client:
    """A connected process: when it was last heard, messages its socket did not take yet, and whether it gets KV
    events."""

    heard: float
    kv: bool = False
    outbox: deque[bytes] = field(default_factory=deque[bytes])


class EngineProcess:
    """Binds `spec.endpoint`. `build` loads the model, reporting (stage, fraction), and returns the core and its
    description; the socket answers `Loading` meanwhile."""

    def __init__(
        self, spec: EngineSpec, build: Callable[[EngineSpec, Callable[[str, float], None]], EngineCore]
    ) -> None:
        self._spec = spec
        self._build = build
        self._parent = os.getppid()
        self._clients: dict[bytes, Client] = {}
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._core: EngineCore | None = None
        self._ready: Ready | None = None
        self._ending = False
        self._beaten = 0.0
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.LINGER, 200)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._guard = guard(self._context, self._socket, spec.curve)
        self._socket.bind(spec.endpoint)

    def run(self) -> None:
        """Load and serve until told to end. Raises what broke it."""
        try:
            core = self._build(self._spec, self._loading)
            self._core, self._ready = core, core.ready
            self._broadcast(core.ready)
            while not self._ending:
                self._turn(core)
        except KeyboardInterrupt:
            pass
        finally:
            self._socket.close()
            self._guard.close()
            self._context.term()
            with suppress(OSError):  # the folder is the parent's to remove, but the parent may have been killed
                socket = Path(self._spec.endpoint.removeprefix("ipc://"))
                socket.unlink()
                socket.parent.rmdir()

    def _turn(self, core: EngineCore) -> None:
        self._receive(wait=0.0 if core.busy else COMPILE_POLL_SECONDS if core.compiling else HEARTBEAT_SECONDS)
        for name, refused in core.compiled():
            self._send(name, refused)
        seconds = core.plan()
        now = time.monotonic()
        if now - self._beaten >= HEARTBEAT_SECONDS or seconds > LONG_STEP_SECONDS:
            self._beaten = now
            self._beat(core, now)  # before the step: after a long one greetings would still lie unread in the socket
        for name, progress in core.step().items():
            self._send(name, Step(progress=progress))
        for name, digests in core.wanted().items():
            self._send(name, ImagesWanted(digests=digests))
        self._tell_kv(core)

    def _receive(self, wait: float) -> None:
        if not self._socket.poll(round(wait * 1000)):
            return
        for _ in range(MESSAGES_PER_STEP):
            try:
                name, body = self._socket.recv_multipart(zmq.NOBLOCK)
                self._handle(name, self._decoder.decode(body))
            except zmq.Again:
                return
            except (ValueError, msgspec.DecodeError) as error:  # not two frames, or not a message of ours
                log.warning("unreadable message dropped: %s", error, extra={"action": "bad_message"})
            if self._ending:
                return

    def _handle(self, name: bytes, message: ToEngine) -> None:
        match message:
            case Hello():
                self._greet(name)
            case Generate() if name in self._clients:
                refused = self._core.submit(name, message) if self._core else _still_loading(message.id)
                if refused:
                    self._send(name, refused)
            case ImagePixels():
                for refused in self._core.supply(name, message.digest, message.pixels) if self._core else ():
                    self._send(name, refused)
            case Abort():
                if self._core:
                    self._core.abort(name, message.id)
            case Subscribe() if self._core and name in self._clients:
                self._subscribe(name, self._core)
            case Shutdown():
                self._ending = True
            case _:
                pass  # a request of a forgotten client: the `Ready` that answers its next greeting fails it there

    def _greet(self, name: bytes) -> None:
        """Known clients are only refreshed. `Ready` to one that is not known also says: nothing of yours runs here."""
        if client := self._clients.get(name):
            client.heard = time.monotonic()
            return
        self._clients[name] = Client(heard=time.monotonic())
        if self._ready:
            self._send(name, self._ready)

    def _beat(self, core: EngineCore, now: float) -> None:
        """Show every client that the loop moves; let go of those that do not, and end with the parent process."""
        stats = core.stats()
        for name, client in list(self._clients.items()):
            if now - client.heard > CLIENT_SILENCE_SECONDS:
                self._forget(name, "silent")
            else:
                self._send(name, stats)
        self._ending = self._ending or os.getppid() != self._parent

    def _subscribe(self, name: bytes, core: EngineCore) -> None:
        """A snapshot, then the events that follow on it. One that still lags behind has to ask once more."""
        self._tell_kv(core)
        client = self._clients[name]
        client.kv = len(client.outbox) <= KV_OUTBOX_MESSAGES
        if client.kv:
            core.journal.start()
            for part in core.journal.snapshot():
                self._send(name, part)

    def _tell_kv(self, core: EngineCore) -> None:
        """What changed in the prefix cache, to all who subscribed. Whoever lags behind gets no more of it: it sees by
        the heartbeat's number that it missed something."""
        events = core.journal.drain()
        if events is None:
            return
        data = self._encoder.encode(events)
        for name, client in list(self._clients.items()):
            if client.kv and len(client.outbox) > KV_OUTBOX_MESSAGES:
                client.kv = False
                log.warning("a subscriber of KV events lags behind", extra={"action": "kv_dropped"})
            elif client.kv:
                self._put(name, client, data)
        if not any(client.kv for client in self._clients.values()):
            core.journal.stop()

    def _send(self, name: bytes, message: FromEngine) -> None:
        """To a client, if it is still known."""
        if client := self._clients.get(name):
            self._put(name, client, self._encoder.encode(message))

    def _put(self, name: bytes, client: Client, data: bytes) -> None:
        """Send in order, keeping what the socket does not take now; a client that cannot be served is forgotten."""
        client.outbox.append(data)
        try:
            while client.outbox:
                self._socket.send_multipart((name, client.outbox[0]), zmq.NOBLOCK)
                client.outbox.popleft()
        except zmq.Again:
            if len(client.outbox) > OUTBOX_MESSAGES:
                self._forget(name, "not reading")
        except zmq.ZMQError:  # EHOSTUNREACH: the connection is closed
            self._forget(name, "gone")

    def _forget(self, name: bytes, why: str) -> None:
        del self._clients[name]
        dropped = self._core.drop_client(name) if self._core else 0
        log.info("client forgotten (%s), %d requests aborted", why, dropped, extra={"action": "client_gone"})

    def _broadcast(self, message: FromEngine) -> None:
        for name in list(self._clients):
            self._send(name, message)

    def _loading(self, stage: str, fraction: float) -> None:
        """Called by the loader now and then: answer greetings, tell how far it is."""
        self._receive(wait=0.0)
        if self._ending or os.getppid() != self._parent:
            raise KeyboardInterrupt
        self._broadcast(Loading(stage=stage, fraction=fraction))


def _still_loading(request_id: str) -> Refused:
    return Refused(
        id=request_id,
        kind=ErrorKind.UNAVAILABLE,
        code="model_loading",
        message="The model is loading.",
        retry_after=2.0,
    )


def main() -> int:
    """`python -m stoker.engine`: an `EngineSpec` as JSON on standard input, and on standard output nothing but the
    reason of a failure, for whoever started it. Returns the exit status."""
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=EngineSpec)
    setup(spec.log_format, spec.log_level)
    try:
        EngineProcess(spec, build_core).run()
    except ModelError as error:
        print(error)
        return 1
    except Exception as error:
        log.exception("engine failed", extra={"action": "engine_failed"})
        print(f"{type(error).__name__}: {error}")
        return 1
    return 0
