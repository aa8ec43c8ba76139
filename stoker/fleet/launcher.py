"""Engines as child processes of this one, on this host: who gets which part of it, and how many load at once.

Owns the places of the host. A place is given up only with the replica: its engine may be started anew in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence

import msgspec

from stoker.engine.client import Pixels
from stoker.engine.spec import EngineSpec
from stoker.fleet.backend import State
from stoker.fleet.seat import ENGINE_COMMAND, LocalSeat
from stoker.fleet.supervisor import LocalReplica
from stoker.types.wire import KVNews


class Host:
    """What all engines of one host share. `engines` is how many there are to be: an engine takes its part when it
    starts, so a later change holds for those that start later."""

    def __init__(self, engines: int = 1, *, loading: int = 2) -> None:
        self.engines = engines
        self.loading = asyncio.Semaphore(loading)
        self._places: dict[Hashable, int] = {}

    def place(self, name: Hashable) -> int:
        """The number of a replica among all of this host: the lowest that is free, or the one it has."""
        if name not in self._places:
            taken = set(self._places.values())
            self._places[name] = next(number for number in range(len(taken) + 1) if number not in taken)
        return self._places[name]

    def leave(self, name: Hashable) -> None:
        self._places.pop(name, None)


class LocalLauncher:
    """A `Launcher`. `spec` says everything but what differs between the replicas; `pixels` gives those of
    images that engines ask for."""

    limit: int | None = None

    def __init__(
        self,
        host: Host,
        spec: EngineSpec,
        *,
        zone: str = "",
        command: Sequence[str] = ENGINE_COMMAND,
        pixels: Pixels | None = None,
    ) -> None:
        self._host = host
        self._spec = spec
        self._zone = zone
        self._command = command
        self._pixels = pixels

    def make(
        self,
        name: str,
        *,
        proven: Callable[[], bool],
        on_state: Callable[[State], None],
        on_kv: Callable[[KVNews], None],
    ) -> LocalReplica:
        place = self._host.place((self, name))

        def spec(endpoint: str) -> EngineSpec:
            engines = max(self._host.engines, place + 1)
            return msgspec.structs.replace(self._spec, endpoint=endpoint, place=place, engines=engines)

        return LocalReplica(
            spec,
            name=name,
            zone=self._zone,
            slots=self._spec.config.max_running,
            seat=lambda: LocalSeat(self._command),
            loading=self._host.loading,
            proven=proven,
            on_state=on_state,
            on_kv=on_kv,
            pixels=self._pixels,
        )

    def forget(self, name: str) -> None:
        self._host.leave((self, name))
