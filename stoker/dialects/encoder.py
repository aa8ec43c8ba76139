"""What every dialect's encoders have in common: the seam to the gateway, and the response's head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from stoker.types.chat import Event, FinishReason
from stoker.types.errors import StokerError

JSON = msgspec.json.Encoder()


def finish_name(reason: FinishReason) -> str:
    """Why a choice ended. Choices that failed never get here: their request does."""
    if reason in ("abort", "error"):
        raise ValueError(f"a choice that ended by {reason} has no finish_reason")
    return reason


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """What every object of one response starts with."""

    id: str
    created: int
    model: str
    fingerprint: str


class StreamEncoder(Protocol):
    """Events of one request -> JSON objects of its stream, in order."""

    def push(self, event: Event) -> Sequence[bytes]: ...

    def error(self, error: StokerError) -> bytes:
        """The object that tells of a failure after the stream has begun. It is the last one."""
        ...

    @property
    def end(self) -> bytes | None:
        """What is sent after the last object of a stream that went well."""
        ...

    @property
    def named(self) -> bool:
        """Whether each object is sent as an event of the name that its `type` says; `type` then comes first in it."""
        ...


class WholeEncoder(Protocol):
    """Events of one request -> one JSON object."""

    def push(self, event: Event) -> None: ...

    def finish(self) -> bytes: ...


class ErrorShape(Protocol):
    """How a dialect says that something failed, where that is all of the answer. Modules do this."""

    def status_of(self, error: StokerError) -> int: ...

    def encode_error(self, error: StokerError) -> bytes: ...
