"""The replicas of one model: made, started, watched, stopped, and what the router must hear of them.

Owns the members and their engines' lives, the model's state, and the end of engines that hang. Does not see requests
(`pool.py`), and does not decide when a silent engine hangs (`silence.py`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from stoker.fleet.backend import Down, Launcher, ReplicaStatus, Starting, State
from stoker.fleet.member import Member
from stoker.fleet.router import ReplicaInfo, Router
from stoker.fleet.silence import TICK_SECONDS, Silence
from stoker.types.wire import KVNews, KVSnapshot, Ready

log = logging.getLogger(__name__)


class Replicas:
    """`await start(count)`, `await stop()` leaves nothing. `on_state` hears of the model's state whenever one of the
    replicas' has changed."""

    def __init__(self, name: str, launcher: Launcher, router: Router, on_state: Callable[[State], None]) -> None:
        self.name = name
        self.members: dict[str, Member] = {}
        self.stopping = False
        self.launcher = launcher  # of those that are added from now on
        self._router = router
        self._on_state = on_state
        self._proven = False
        self._news = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def state(self) -> State:
        """See `Backend.state`."""
        states = [member.replica.state for member in self.members.values() if not member.closed]
        ready = [state for state in states if isinstance(state, Ready)]
        if ready:
            return Ready(
                context=min(state.context for state in ready),
                kv_tokens=sum(state.kv_tokens for state in ready),
                block_size=ready[0].block_size,
                dtype=ready[0].dtype,
                device=ready[0].device,
                load_seconds=max(state.load_seconds for state in ready),
            )
        down = [state for state in states if isinstance(state, Down)]
        failed = next((state for state in down if state.final), None)
        if failed is not None and not self._proven:
            return failed  # the others wait for it to show that the model can be served
        loading = [state for state in states if isinstance(state, Starting)]
        if loading:
            return max(loading, key=lambda state: state.fraction)
        return down[0] if down else Down(reason="all replicas are drained")

    def status(self) -> Mapping[str, ReplicaStatus]:
        return {name: member.status() for name, member in self.members.items()}

    async def start(self, count: int) -> None:
        """Returns at once. One replica starts first and shows that the model can be served, then the others."""
        first, *rest = [self.add(f"{self.name}/{number}") for number in range(count)]
        await first.replica.start()
        self._spawn(self._start_rest(rest))
        self._spawn(self._watch())

    async def stop(self) -> None:
        self.stopping = True
        self.tell()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(member.replica.stop() for member in self.members.values()))
        for member in self.members.values():
            member.launcher.forget(member.name)

    def tell(self) -> None:
        """Something has changed: whoever waits for `news` may have better luck now."""
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, seconds: float) -> None:
        """Wait until something changes, but no longer than that."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), seconds)

    def add(self, name: str | None = None) -> Member:
        """A replica that is not started yet; without a name the first that is free."""
        numbers = (f"{self.name}/{number}" for number in itertools.count())
        name = name or next(free for free in numbers if free not in self.members)

        def changed(state: State) -> None:
            self._changed(member, state)

        def cached(news: KVNews) -> None:
            self._cached(member, news)

        replica = self.launcher.make(name, proven=lambda: self._proven, on_state=changed, on_kv=cached)
        member = self.members[name] = Member(replica, self.launcher)
        return member

    async def remove(self, member: Member) -> None:
        """Stop it and forget it; requests that still run there are lost to it and go on elsewhere."""
        member.closed = True
        await member.replica.stop()
        del self.members[member.name]
        member.launcher.forget(member.name)
        self.tell()

    def _changed(self, member: Member, state: State) -> None:
        """A replica's state did. The router knows those that are ready, each of their lives anew."""
        name = member.name
        self._router.remove(name)
        if isinstance(state, Ready):
            self._proven = True
            replica = member.replica
            info = ReplicaInfo(name=name, zone=replica.zone, capacity_tokens=state.kv_tokens, slots=replica.slots)
            self._router.add(info)
        elif isinstance(state, Down):
            member.victims = list(member.flights.values())
        self.tell()
        self._on_state(self.state)

    def _cached(self, member: Member, news: KVNews) -> None:
        if isinstance(news, KVSnapshot):
            self._router.snapshot(member.name, news)
        elif not self._router.events(member.name, news):
            member.replica.resubscribe()

    async def _start_rest(self, rest: Sequence[Member]) -> None:
        while not self._proven:
            await self._news.wait()
        for member in rest:
            await member.replica.start()

    async def _watch(self) -> None:
        """Pass heartbeats on, and end engines from which none come."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = time.monotonic()
            for member in tuple(self.members.values()):
                if isinstance(member.replica.state, Ready):
                    self._look(member, now)
                else:
                    member.silence = Silence()

    def _look(self, member: Member, now: float) -> None:
        replica, stats = member.replica, member.replica.stats
        if stats is not None and stats is not member.heard:
            member.heard = stats
            if not self._router.stats(member.name, stats):
                replica.resubscribe()
        silent = member.silence.tick(now, replica.heartbeat_age, stats)
        if silent is not None:
            member.silence = Silence()
            extra = {"action": "engine_hung", "replica": member.name}
            log.error("an engine has shown no sign of life for %.1f s and is ended", silent, extra=extra)
            replica.kill(f"the engine hung: no sign of life for {silent:.0f} s")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
