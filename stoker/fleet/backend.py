"""The seams of the fleet: what the service asks to generate tokens, and what one replica must be able to do."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Protocol

import msgspec

from stoker.fleet.route import Route
from stoker.types.wire import EngineStats, Generate, KVNews, Progress, Ready


class Starting(msgspec.Struct, frozen=True, kw_only=True):
    """Loads or restarts. `fraction` 0..1 of `stage`."""

    stage: str
    fraction: float


class Down(msgspec.Struct, frozen=True, kw_only=True):
    """Does not serve; `reason` is for a person. `final` when no restart will be tried."""

    reason: str
    final: bool = False


State = Starting | Ready | Down


class ReplicaStatus(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One replica, for people and probes.

    status         starting, ready, draining (finishes what it has), drained (stopped, until that is undone), down
    reason         why it is down
    in_flight      requests that it works on
    restarts       how often its engine was started anew after it had died
    heartbeat_age  seconds since the engine's own loop showed that it moves, while it is ready
    engine         the newest heartbeat's figures
    """

    status: str
    stage: str | None = None
    fraction: float | None = None
    reason: str | None = None
    zone: str = ""
    in_flight: int = 0
    restarts: int = 0
    heartbeat_age: float | None = None
    engine: EngineStats | None = None


class RoutingFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool has decided and what it knows, for people and metrics.

    decisions        how many, by reason
    index            how well each replica's cache is known: exact, degraded or absent
    gaps             how often events of each replica were missed
    sessions         whose last replica is remembered
    blocks           logical blocks in the index, each counted once
    replays          times that a request lost its engine and went on elsewhere
    repeated_tokens  computed again because of that
    """

    decisions: Mapping[str, int] = {}
    index: Mapping[str, str] = {}
    gaps: Mapping[str, int] = {}
    sessions: int = 0
    blocks: int = 0
    replays: int = 0
    repeated_tokens: int = 0


class Backend(Protocol):
    """All replicas of one model, to the service. Used from one event loop."""

    @property
    def state(self) -> State:
        """`Ready` as soon as one replica is; its `context` is then the shortest, its `kv_tokens` the sum."""
        ...

    def replicas(self) -> Mapping[str, ReplicaStatus]: ...

    def routing(self) -> RoutingFigures: ...

    def generate(self, request: Generate, route: Route) -> AsyncGenerator[Progress]:
        """Tokens of `request` as they are made; the last item carries `finish`.

        A replica that dies is no error as long as another can go on. Raises `StokerError`: UNAVAILABLE while none
        serves, CAPACITY when all queues are full, INVALID when the request can never fit. Closing the generator early
        (or cancelling its reader) aborts the request in the engine, which frees its blocks at the next step.
        """
        ...


class Replica(Protocol):
    """One engine, to the pool: a process of ours, later any other server. `name` is MODEL/NUMBER."""

    @property
    def name(self) -> str: ...

    @property
    def zone(self) -> str: ...

    @property
    def slots(self) -> int:
        """Sequences that run at the same time."""
        ...

    @property
    def state(self) -> State: ...

    @property
    def stats(self) -> EngineStats | None: ...

    @property
    def heartbeat_age(self) -> float:
        """Seconds since the engine's own loop last showed that it moves; infinity while there is none."""
        ...

    @property
    def restarts(self) -> int: ...

    def generate(self, request: Generate) -> AsyncGenerator[Progress]:
        """As `Backend.generate`, but a request that this engine loses raises `LostError`."""
        ...

    async def start(self) -> None:
        """Return at once; `state` tells how far it is."""
        ...

    async def stop(self) -> None:
        """Leave nothing behind. Requests that run are lost."""
        ...

    def evict(self) -> None:
        """Lose every request that runs here, so that it goes on elsewhere."""
        ...

    def kill(self, reason: str) -> None:
        """End an engine that no longer answers; it is then restarted like one that died."""
        ...

    def resubscribe(self) -> None:
        """Have the engine tell anew what is in its prefix cache."""
        ...


class Launcher(Protocol):
    """Where the replicas of one model come from. `limit` is how many it can have at a time; None is no limit."""

    limit: int | None

    def make(
        self,
        name: str,
        *,
        proven: Callable[[], bool],
        on_state: Callable[[State], None],
        on_kv: Callable[[KVNews], None],
    ) -> Replica:
        """A replica that is not started yet. `proven` says whether another one of the model has served, `on_state` is
        to be called with every change of its state, `on_kv` with what its engine says of its prefix cache."""
        ...

    def forget(self, name: str) -> None:
        """It was stopped for good: what was set aside for it is free."""
        ...
