"""All replicas of one model as one `Backend`: each request goes where the router says, and on from there.

Owns what happens to a request from the service's call to its last token: placing it, and placing it again with what was
already sent when an engine is lost under it. Engines' lives are in `replicas.py`; which of them gets what is decided in
`router.py`, which requests are not tried again in `suspects.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

import msgspec

from stoker.fleet.attempt import Attempt
from stoker.fleet.backend import Down, Launcher, ReplicaStatus, RoutingFigures, State
from stoker.fleet.member import Member
from stoker.fleet.operations import Operations
from stoker.fleet.replay import Run
from stoker.fleet.replicas import Replicas
from stoker.fleet.route import Route
from stoker.fleet.router import Decision, Denial, NoReplica, Router, RouteRequest
from stoker.fleet.supervisor import unavailable
from stoker.fleet.suspects import Suspect, died
from stoker.obs.traces import Traces
from stoker.types.errors import ErrorKind, LostError, StokerError, invalid
from stoker.types.wire import Generate, Progress, Ready

RETRY_SECONDS = 1.0  # between two tries to place a request that waits for an engine, if nothing happens before

log = logging.getLogger(__name__)


class Pool:
    """`await start()`, then use as a `Backend`; `await stop()` leaves nothing.

    `recover` seconds is how long a request that has lost its engine waits for one that can go on; others do not wait.
    `patience` seconds is how long a replica that is to stop may finish what it has.

    replayed         requests that went on after a loss
    repeated_tokens  computed again for them
    moved            sessions whose replica took no requests any more, so that they went to another
    moved_tokens     of their prompts computed there
    """

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        *,
        replicas: int = 1,
        recover: float = 30.0,
        patience: float = 60.0,
        router: Router | None = None,
        traces: Traces | None = None,
        on_state: Callable[[State], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.replayed = 0
        self.repeated_tokens = 0
        self.moved = 0
        self.moved_tokens = 0
        self._router = router or Router()
        self._traces = traces or Traces()
        self._replicas = Replicas(name, launcher, self._router, on_state)
        self.operations = Operations(self._replicas, patience)
        self._count = replicas
        self._recover = recover
        self._starter: Suspect | None = None  # who starts for itself, see suspects.py

    @property
    def members(self) -> Mapping[str, Member]:
        return self._replicas.members

    @property
    def state(self) -> State:
        return self._replicas.state

    def replicas(self) -> Mapping[str, ReplicaStatus]:
        return self._replicas.status()

    def routing(self) -> RoutingFigures:
        figures = self._router.figures()
        return msgspec.structs.replace(figures, replays=self.replayed, repeated_tokens=self.repeated_tokens)

    async def start(self) -> None:
        """Returns at once."""
        await self._replicas.start(self._count)

    async def ready(self) -> State:
        """Wait until it serves, or cannot."""
        while not isinstance(state := self.state, Ready) and not (isinstance(state, Down) and state.final):
            await self._replicas.news(RETRY_SECONDS)
        return state

    async def stop(self) -> None:
        await self._replicas.stop()

    async def generate(self, request: Generate, route: Route) -> AsyncGenerator[Progress]:
        run, suspect = Run(request), Suspect()
        refused: dict[str, StokerError] = {}  # by replicas that did not take it
        until: float | None = None  # how long it may wait for an engine
        while True:
            try:
                if suspect.deaths > 1:
                    await self._start_alone(suspect, until)
                decision = await self._place(run, route, refused, until)
                member = self.members[decision.replica]
                try:
                    async with aclosing(self._attempt(run, route, decision, suspect)) as steps:
                        async for progress in steps:
                            until = None
                            yield progress
                            if progress.finish is not None:
                                return
                    return
                except LostError as error:
                    self._lost(run, suspect, member, error)
                    until = until or time.monotonic() + self._recover
                except StokerError as error:
                    if error.kind not in (ErrorKind.UNAVAILABLE, ErrorKind.CAPACITY):
                        raise
                    refused[member.name] = error
            finally:
                suspect.alone = False

    async def _place(self, run: Run, route: Route, refused: dict[str, StokerError], until: float | None) -> Decision:
        """A replica for it. Only what has lost its engine waits for one. Raises StokerError."""
        while True:
            closed = {name for name, member in self.members.items() if not member.ready}
            try:
                return self._router.route(_ask(run, route), frozenset(closed | refused.keys()))
            except NoReplica as nobody:
                error = self._explain(nobody, route, refused)
            if error.kind is ErrorKind.INVALID or not await self._luck(until):
                raise error
            refused.clear()

    async def _attempt(self, run: Run, route: Route, decision: Decision, suspect: Suspect) -> AsyncGenerator[Progress]:
        """What one replica makes of it."""
        member, repeated = self.members[decision.replica], run.repeated
        home = self.members.get(decision.bound) if decision.bound else None
        moved = decision.bound is not None and not run.replays and (home is None or not home.ready)
        self.moved += moved
        self._router.dispatch(_ask(run, route), decision)
        member.flights[run.id] = suspect
        attempt = Attempt(self._traces, run.traceparent, decision)
        try:
            async with aclosing(member.replica.generate(run.request(attempt.span.traceparent))) as stream:
                async for progress in stream:
                    attempt.heard(progress)
                    if moved:
                        moved = False
                        self.moved_tokens += run.tokens - progress.cached
                    self._router.begun(run.id, progress.cached)
                    self._router.progressed(run.id, len(progress.tokens))
                    told, alone = run.take(progress), suspect.alone
                    suspect.progressed(len(run.output))
                    if alone:
                        self._replicas.tell()
                    yield told
        except StokerError as error:
            attempt.end(error.kind.value)
            raise
        finally:
            attempt.end()
            self.repeated_tokens += run.repeated - repeated
            member.flights.pop(run.id, None)
            self._router.finished(run.id)
            self._replicas.tell()

    def _lost(self, run: Run, suspect: Suspect, member: Member, error: LostError) -> None:
        """Raises StokerError if it shall not be tried again."""
        if error.suspect:
            died(member.victims)
            member.victims = []
        if suspect.guilty:
            log.error("a request ended engines and is refused", extra={"action": "poison_request", "request": run.id})
            raise invalid(
                "poison_request",
                "Engines ended again and again while they worked on this request, so it is not tried any more.",
            )
        run.replays += 1
        self.replayed += 1
        fields = {"action": "replay", "request": run.id, "replica": member.name, "code": error.code}
        log.warning("a request lost its engine after %d tokens and goes on", len(run.output), extra=fields)

    async def _start_alone(self, suspect: Suspect, until: float | None) -> None:
        """Wait until no other suspect starts."""
        until = until or time.monotonic() + self._recover
        while self._starter is not None and self._starter.alone:
            if not await self._luck(until):
                raise unavailable(self.state)
        suspect.alone, self._starter = True, suspect

    async def _luck(self, until: float | None) -> bool:
        """Wait until things have changed, or for a moment. False, at once, if it has waited long enough."""
        left = 0.0 if until is None or self._replicas.stopping else until - time.monotonic()
        if left <= 0:
            return False
        await self._replicas.news(min(left, RETRY_SECONDS))
        return True

    def _explain(self, nobody: NoReplica, route: Route, refused: Mapping[str, StokerError]) -> StokerError:
        """Why it has no place, in words for its client."""
        if refused:
            return next(reversed([*refused.values()]))
        zone = route.zone
        if zone is not None and all(member.replica.zone != zone for member in self.members.values()):
            return invalid("zone_not_served", f"The model {self.name} is not served in the zone {zone}.")
        if nobody.denial is Denial.ZONE:
            message = f"No replica in the zone {zone} serves at present, and the request may not leave it."
            return StokerError(ErrorKind.UNAVAILABLE, "zone_unavailable", message, retry_after=5.0)
        if nobody.denial is Denial.WORKING_SET:
            message = "The caches are full with the sessions that are being served."
            return StokerError(ErrorKind.CAPACITY, "out_of_capacity", message, retry_after=5.0)
        return unavailable(self.state)


def _ask(run: Run, route: Route) -> RouteRequest:
    return RouteRequest(
        id=run.id,
        tenant=route.tenant,
        session=route.session,
        zone=route.zone,
        blocks=route.blocks,
        tokens=run.tokens,
        lane=run.lane,
    )
