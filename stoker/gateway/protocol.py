"""uvicorn's HTTP/1.1 protocol with what it leaves open: a time and size limit on request heads, an end for
clients that do not read, a limit on connections, and errors in JSON. Written against uvicorn 0.54's httptools protocol.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from stoker.dialects.openai_errors import encode_error
from stoker.types.errors import ErrorKind, StokerError, invalid

if TYPE_CHECKING:
    from stoker.config import GatewayConfig

MAX_HEAD = 64 * 1024
LINGER_SECONDS = 1.0


def _refusal(status: int, error: StokerError, extra: bytes = b"") -> bytes:
    body = encode_error(error)
    return (
        STATUS_LINE[status]
        + extra
        + b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        + body
    )


_MALFORMED = _refusal(400, invalid("malformed_request", "This is not a valid HTTP/1.1 request."))
_INCOMPLETE = _refusal(400, invalid("incomplete_request", "The request ended before it was complete."))
_SLOW = _refusal(408, StokerError(ErrorKind.TIMEOUT, "header_timeout", "The request head came too slowly."))
_LONG = _refusal(431, StokerError(ErrorKind.TOO_LARGE, "head_too_large", f"The head is above {MAX_HEAD} bytes."))
_FULL = _refusal(
    503,
    StokerError(ErrorKind.CAPACITY, "too_many_connections", "Too many connections at once."),
    b"retry-after: 1\r\n",
)


class GuardedProtocol(HttpToolsProtocol):
    """`gateway` is set by the server's subclass of this class."""

    gateway: GatewayConfig

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._in_head = True
        self._refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.gateway.max_connections:
            self._refuse(_FULL)
            self.transport.close()
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._disarm_stall()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The send buffer is full. If the client takes nothing for a while it is cut off, not just closed: closing
        would wait until it has taken all."""
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self.gateway.body_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        self._disarm_stall()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._refused or self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD:
            self._refuse(_LONG)

    def eof_received(self) -> None:
        """The client will send no more. A request cut short is told so; any other client counts as gone, because
        one that has closed its socket looks the same."""
        incomplete = (
            self._head_bytes > 0 if self._in_head else self.cycle.more_body and not self.cycle.response_complete
        )
        if incomplete and not self._refused:
            self._refuse(_INCOMPLETE)
        self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if not self._in_head:
            self._in_head = True
            self._head_bytes = 1
            self._arm()

    def on_headers_complete(self) -> None:
        self._disarm()
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_bytes = 0

    def send_400_response(self, msg: str) -> None:
        self._refuse(_MALFORMED)

    def _refuse(self, response: bytes) -> None:
        """Answer and close, unless an answer is already under way: then only close.

        What the client still sends is dropped for a moment first: closing a connection on unread bytes resets it, and
        the client would never see why.
        """
        self._disarm()
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        answered = self.cycle and self.cycle.response_started and not self.cycle.response_complete
        if self.cycle and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if not answered:
            self.transport.write(response)
        if answered or not self.transport.can_write_eof():
            self.transport.close()
            return
        self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _arm(self) -> None:
        self._disarm()
        self._head_timer = self.loop.call_later(self.gateway.header_timeout, self._refuse, _SLOW)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _disarm_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
