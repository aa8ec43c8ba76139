"""What an operator does to the replicas of one model while it serves: drain, restart, replace, more or fewer of them.

Owns the order of things, so that no request fails for it: a replica gets no new requests, finishes what it has, hands
what takes too long to others, and only then stops; the last one that serves its zone never does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from stoker.fleet.backend import Down, Launcher
from stoker.fleet.member import Member
from stoker.fleet.replicas import Replicas
from stoker.types.errors import ErrorKind, StokerError, invalid
from stoker.types.wire import Ready

READY_SECONDS = 3600.0  # for an engine to load a very large model
TELL_SECONDS = 5.0  # between two words of progress
HANDED_ON_SECONDS = 10.0  # for requests that were handed on to leave

Say = Callable[[str], None]


class Operations:
    """One at a time. `patience` is how many seconds a replica that is to stop may go on with what it has; what is still
    there then goes on elsewhere, for the price of computing it again. `say` gets progress in words."""

    def __init__(self, replicas: Replicas, patience: float) -> None:
        self._replicas = replicas
        self._patience = patience
        self._busy = asyncio.Lock()

    async def drain(self, name: str, say: Say) -> None:
        """Let a replica finish and stop it, until `undo`. Raises StokerError for one that cannot be spared."""
        async with self._busy:
            member = self._member(name)
            if member.drained:
                say(f"{name} is drained already")
                return
            self._check_spare(member)
            if await self._empty(member, say):
                member.drained = True
                await member.replica.stop()
                say(f"{name} is drained")

    async def undo(self, name: str, say: Say) -> None:
        """Take a replica back that was drained, or is about to be."""
        member = self._member(name)
        member.closed = False
        self._replicas.tell()
        if not member.drained:
            say(f"{name} takes requests")
            return
        async with self._busy:
            member.drained = False
            await member.replica.start()
            await self._ready(member, say)

    async def restart(self, name: str | None, say: Say) -> None:
        """One replica after the other, or the one of that name; drained ones stay as they are."""
        async with self._busy:
            members = list(self._replicas.members.values()) if name is None else [self._member(name)]
            for member in members:
                if not member.drained:
                    await self._renew(member, say)

    async def replace(self, launcher: Launcher, say: Say) -> None:
        """Every replica by one of `launcher`; those that are drained are gone."""
        async with self._busy:
            self._replicas.launcher = launcher
            for member in list(self._replicas.members.values()):
                if member.drained:
                    await self._replicas.remove(member)
                else:
                    await self._renew(member, say)

    async def resize(self, count: int, say: Say) -> None:
        """So many replicas, the drained ones among them."""
        limit = self._replicas.launcher.limit
        if limit is not None and count > limit:
            raise _failed(f"{self._replicas.name} can have {limit} replicas, not {count}")
        async with self._busy:
            while len(self._replicas.members) < count:
                member = self._replicas.add()
                await member.replica.start()
                await self._ready(member, say)
            while len(self._replicas.members) > count:
                member = next(reversed(self._replicas.members.values()))
                if not member.drained:
                    await self._empty(member, say)
                await self._replicas.remove(member)
                say(f"{member.name} is gone")

    async def finish(self, say: Say) -> None:
        """Wait until no request runs on any of them, but not longer than `patience`."""
        for member in self._replicas.members.values():
            member.closed = True
        until = time.monotonic() + self._patience
        for member in list(self._replicas.members.values()):
            await self._finished(member, until, say)

    async def _renew(self, member: Member, say: Say) -> None:
        """Another replica in its place: after it where others serve meanwhile, before it where it is the only one."""
        if self._others(member):
            await self._empty(member, say)
            await self._replicas.remove(member)
            fresh = self._replicas.add(member.name)
            await fresh.replica.start()
            await self._ready(fresh, say)
            return
        limit = self._replicas.launcher.limit
        if limit is not None and len(self._replicas.members) >= limit:
            raise _failed(f"{member.name} is the only replica that serves, and there is none to take its place")
        fresh = self._replicas.add()
        await fresh.replica.start()
        try:
            await self._ready(fresh, say)
        except StokerError:
            await self._replicas.remove(fresh)
            raise
        await self._empty(member, say)
        await self._replicas.remove(member)
        say(f"{fresh.name} is in the place of {member.name}")

    async def _empty(self, member: Member, say: Say) -> bool:
        """No new requests, and those that are there finish or move. False if it was taken back meanwhile."""
        member.closed = True
        self._replicas.tell()
        await self._finished(member, time.monotonic() + self._patience, say)
        if member.closed and member.flights:
            say(f"{member.name}: {len(member.flights)} requests go on elsewhere")
            member.replica.evict()
            await self._finished(member, time.monotonic() + HANDED_ON_SECONDS, say)
        return member.closed

    async def _finished(self, member: Member, until: float, say: Say) -> None:
        told = 0.0
        while member.closed and member.flights and (now := time.monotonic()) < until:
            if now - told >= TELL_SECONDS:
                told = now
                say(f"{member.name} has {len(member.flights)} requests to finish")
            await self._replicas.news(min(TELL_SECONDS, until - now))

    async def _ready(self, member: Member, say: Say) -> None:
        """Wait until it serves. Raises StokerError if it fails."""
        until, told = time.monotonic() + READY_SECONDS, ""
        say(f"{member.name} starts")
        while not isinstance(state := member.replica.state, Ready):
            if isinstance(state, Down):
                raise _failed(f"{member.name} does not start: {state.reason}")
            if time.monotonic() > until:
                raise _failed(f"{member.name} is not ready after {READY_SECONDS:.0f} s")
            if state.stage != told:
                told = state.stage
                say(f"{member.name}: {told}")
            await self._replicas.news(TELL_SECONDS)
        say(f"{member.name} is ready")

    def _member(self, name: str) -> Member:
        member = self._replicas.members.get(name)
        if member is None:
            known = ", ".join(self._replicas.members)
            message = f"There is no replica '{name}'; there are {known}."
            raise StokerError(ErrorKind.NOT_FOUND, "unknown_replica", message)
        return member

    def _others(self, member: Member) -> bool:
        """Whether its zone is served without it."""
        zone = member.replica.zone
        return any(
            other.ready and other.replica.zone == zone
            for other in self._replicas.members.values()
            if other is not member
        )

    def _check_spare(self, member: Member) -> None:
        if isinstance(member.replica.state, Ready) and not self._others(member):
            raise invalid(
                "last_replica",
                f"{member.name} is the only replica that serves; `stoker restart --rolling` starts another one first.",
            )


def _failed(message: str) -> StokerError:
    return StokerError(ErrorKind.UNAVAILABLE, "replica_failed", message)
