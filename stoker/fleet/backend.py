"""The one interface to whatever generates tokens: our engine in its own process, later any other server."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

import msgspec

from stoker.types.wire import EngineStats, Generate, Progress, Ready


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """Loads or restarts. `fraction` 0..1 of `stage`."""

    stage: str
    fraction: float


class Down(msgspec.Struct, frozen=True, kw_only=True):
    """Does not serve; `reason` is for a person. `final` when no restart will be tried."""

    reason: str
    final: bool = False


State = Starting | Ready | Down


class Backend(Protocol):
    """Generates tokens for prompts. One object per replica, used from one event loop."""

    @property
    def state(self) -> State: ...

    @property
    def stats(self) -> EngineStats | None:
        """The newest heartbeat's figures; None before the first."""
        ...

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the engine's own loop last showed that it moves; infinity while there is none."""
        ...

    def generate(self, request: Generate) -> AsyncGenerator[Progress]:
        """Tokens of `request` as they are made; the last item carries `finish`.

        Raises `StokerError`: UNAVAILABLE while no engine serves or when it dies midway, CAPACITY when its queue is
        full, INVALID when the request can never fit. Closing the generator early (or cancelling its reader) aborts
        the request in the engine, which frees its blocks at the next step.
        """
        ...
