"""One replica's place in a pool: its engine, what runs there, and whether it may get more."""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.fleet.backend import Down, Launcher, Replica, ReplicaStatus, Starting
from stoker.fleet.silence import Silence
from stoker.fleet.suspects import Suspect
from stoker.types.wire import EngineStats, Ready


@dataclass(eq=False)
class Member:
    """`launcher` made it. `flights` are the requests that run there, `victims` those with which its engine has just
    died. `closed` replicas get no requests; `drained` ones are stopped as well."""

    replica: Replica
    launcher: Launcher
    flights: dict[str, Suspect] = field(default_factory=dict[str, Suspect])
    victims: list[Suspect] = field(default_factory=list[Suspect])
    silence: Silence = field(default_factory=Silence)
    closed: bool = False
    drained: bool = False
    heard: EngineStats | None = None  # the last figures that were passed on

    @property
    def name(self) -> str:
        return self.replica.name

    @property
    def ready(self) -> bool:
        """It may get requests."""
        return not self.closed and isinstance(self.replica.state, Ready)

    def status(self) -> ReplicaStatus:
        replica, state = self.replica, self.replica.state
        starting = state if isinstance(state, Starting) else None
        ready = isinstance(state, Ready)
        return ReplicaStatus(
            status=self._word(),
            stage=starting and starting.stage,
            fraction=starting and starting.fraction,
            reason=state.reason if isinstance(state, Down) else None,
            zone=replica.zone,
            in_flight=len(self.flights),
            restarts=replica.restarts,
            heartbeat_age=round(min(replica.heartbeat_age, 1e9), 1) if ready else None,
            engine=replica.stats if ready else None,
        )

    def _word(self) -> str:
        match self.replica.state:
            case Ready():
                return "draining" if self.closed else "ready"
            case Starting():
                return "starting"
            case Down():
                return "drained" if self.drained else "down"
