"""One HTTP exchange: bounded reading of the request, whole responses, and noticing that the client went away.

Owns bytes and time limits; knows nothing of routes or of what bodies mean.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any

import msgspec

from stoker.gateway.asgi import Receive, Scope, Send
from stoker.obs.traces import Span
from stoker.types.errors import ErrorKind, StokerError, invalid

MIN_BODY_RATE = 16 * 1024  # bytes a second that a body must keep up on average after the first timeout
LINGER_SECONDS = 2.0
MAX_COMMAS = 2_000_000
MAX_OPENERS = 250_000
SMALL_BODY = 64 * 1024
FAREWELL_SECONDS = 0.25  # for a client to take the last words when the server stops

STOPPING = StokerError(ErrorKind.UNAVAILABLE, "server_stopping", "The server is shutting down.", retry_after=1.0)

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")


class ClientGoneError(Exception):
    """The client went away before it had an answer."""


class BodyBudget:
    """Bytes of bodies held at once over all requests, so that many large ones cannot add up to all the memory."""

    def __init__(self, limit: int) -> None:
        self._free = limit

    @contextmanager
    def share(self) -> Generator[Callable[[int], None]]:
        """What is taken within the block is given back at its end. Taking raises CAPACITY when nothing is left."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if count > self._free:
                raise overloaded("Too many large requests at once.")
            self._free -= count
            taken += count

        try:
            yield take
        finally:
            self._free += taken


def overloaded(message: str) -> StokerError:
    return StokerError(ErrorKind.CAPACITY, "overloaded", message, retry_after=1.0)


class Exchange:
    """A request and how far its answer has come.

    client  address that the connection comes from; empty if it is not known
    route   which of the routes that are served it belongs to, `other` if none
    trace   its part of a trace, that of all that is done for it
    status  what was answered; 0 while nothing was
    gone    the client went away while it was watched
    notes   what goes into the log line; never content
    extra   headers that any answer from now on has
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.client: str = (scope.get("client") or ("",))[0]
        self.route = "other"
        self.trace = Span("")
        self.receive = receive
        self.began = time.perf_counter()
        self.status = 0
        self.gone = False
        self.notes: dict[str, Any] = {}
        self.extra: list[tuple[bytes, bytes]] = []
        self._send = send
        self._headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.header(b"x-request-id")
        self.id = given if given and _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
        self._unread = self.header(b"content-length") not in (None, "0") or b"transfer-encoding" in self._headers

    @property
    def outcome(self) -> str:
        """How it ended, in a word: ok, invalid (the client's mistake), failed (not the client's), broken (failed when
        the answer had begun), disconnected (by the client), cut (by the end of this server)."""
        if "outcome" in self.notes:
            return self.notes["outcome"]
        if self.status >= 500:
            return "failed"
        if self.status >= 400:
            return "invalid"
        return "broken" if "error" in self.notes else "ok"

    def header(self, name: bytes) -> str | None:
        value = self._headers.get(name)
        return None if value is None else value.decode("latin-1")

    async def body(self, limit: int, timeout: float, take: Callable[[int], None]) -> bytes:
        """The whole body. Raises TOO_LARGE above `limit` (before reading where the length is announced), TIMEOUT
        after `timeout` without a byte or below a minimum rate, ClientGoneError, and what `take` raises for a chunk."""
        length = self.header(b"content-length")
        if length is not None and length.isdecimal() and int(length) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        loop = asyncio.get_running_loop()
        start = loop.time()
        while True:
            deadline = min(loop.time() + timeout, start + timeout + size / MIN_BODY_RATE)
            try:
                async with asyncio.timeout_at(deadline):
                    message = await self.receive()
            except TimeoutError:
                raise StokerError(ErrorKind.TIMEOUT, "body_timeout", "The body came too slowly.") from None
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk: bytes = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            take(len(chunk))
            chunks.append(chunk)
            if not message.get("more_body", False):
                self._unread = False
                return b"".join(chunks)

    async def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        headers += self.extra
        headers += [(b"x-request-id", self.id.encode()), (b"request-id", self.id.encode())]  # OpenAI's, Anthropic's
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    def write(self, body: bytes, *, more: bool) -> Awaitable[None]:
        return self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def reply(
        self,
        status: int,
        body: bytes,
        *,
        content_type: bytes = b"application/json",
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        """A whole response. A body that was not read is read on for a moment first: closing a connection on unread
        bytes resets it, and the client would never see why."""
        fields = [(b"content-type", content_type), (b"content-length", str(len(body)).encode()), *headers]
        if not self._unread:
            await self.begin(status, fields)
            await self.write(body, more=False)
            return
        await self.begin(status, [*fields, (b"connection", b"close")])
        await self.write(body, more=True)
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while True:
                    message = await self.receive()
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        break
        except TimeoutError:
            pass
        await self.write(b"", more=False)

    async def attend(
        self,
        work: Coroutine[Any, Any, None],
        *,
        every: float | None = None,
        tick: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Run `work` to its end, or cancel it the moment the client goes away (then raises ClientGoneError).

        `tick` is called `every` so many seconds meanwhile. Whatever happens, `work` has ended when this returns.
        """
        job = asyncio.create_task(work)
        watch = asyncio.create_task(self._watch(every, tick))
        try:
            await asyncio.wait((job, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
            job.cancel()
            await asyncio.gather(job, watch, return_exceptions=True)
        if job.cancelled():
            raise ClientGoneError
        job.result()

    async def _watch(self, every: float | None, tick: Callable[[], Awaitable[None]] | None) -> None:
        """Ends when the client is gone."""
        while True:
            try:
                async with asyncio.timeout(every):
                    message = await self.receive()
            except TimeoutError:
                if tick is not None:
                    await tick()
                continue
            if message["type"] == "http.disconnect":
                self.gone = True
                return


def _too_large(limit: int) -> StokerError:
    return StokerError(ErrorKind.TOO_LARGE, "request_too_large", f"The body is larger than {limit} bytes.")


def check_json_headers(exchange: Exchange) -> None:
    """Bodies are plain JSON. Asking for the content type also keeps web pages from posting here unasked: a browser
    sends this type to another origin only after that origin agreed."""
    kind = (exchange.header(b"content-type") or "").split(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise invalid("unsupported_content_type", "The header 'content-type' must be application/json.")
    if (exchange.header(b"content-encoding") or "identity").strip().lower() != "identity":
        raise invalid("unsupported_content_encoding", "Compressed bodies are not accepted.")


def parse_object(body: bytes) -> dict[str, Any]:
    """A body as a JSON object. Raises StokerError (INVALID) for anything else.

    Decoding holds the interpreter, and what takes long is not bytes but values: their number is bounded first. The
    count includes text, which only makes prompts of many times any context's length fail here already.
    """
    if len(body) > SMALL_BODY and (
        body.count(b",") > MAX_COMMAS or body.count(b"{") > MAX_OPENERS or body.count(b"[") > MAX_OPENERS
    ):
        raise StokerError(ErrorKind.TOO_LARGE, "too_many_values", "The body has too many JSON values.")
    try:
        value = msgspec.json.decode(body)
    except RecursionError:
        raise invalid("invalid_json", "The body is nested too deeply.") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise invalid("invalid_json", f"The body is not valid JSON in UTF-8: {error}.") from None
    if not isinstance(value, dict):
        raise invalid("invalid_json", "The body must be a JSON object.")
    return value
