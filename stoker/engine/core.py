"""Requests in, tokens out: the scheduler and the executor joined, several clients kept apart.

Owns the names of requests across clients and the model's own end tokens. Sockets are in process.py; decisions are in
scheduler.py; computing is behind `Executor`.
"""

from __future__ import annotations

import logging
from itertools import count

import msgspec

from stoker.engine.compiler import Compiler
from stoker.engine.executor import Executor
from stoker.engine.journal import Journal
from stoker.engine.scheduler import Outcome, Scheduler
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.plan import StepPlan
from stoker.types.wire import EngineStats, Generate, Progress, Ready, Refused

log = logging.getLogger(__name__)


class EngineCore:
    """`eos_ids` end an output unless its request says `ignore_eos`. `ready` describes this engine to its clients.

    journal  what changes in the prefix cache, for clients that want to know
    """

    def __init__(
        self,
        scheduler: Scheduler,
        executor: Executor,
        compiler: Compiler,
        *,
        eos_ids: tuple[int, ...],
        ready: Ready,
    ) -> None:
        self.ready = ready
        self._scheduler = scheduler
        self._executor = executor
        self._compiler = compiler
        self._eos_ids = eos_ids
        self._numbers = count()
        self._inner: dict[tuple[bytes, str], str] = {}  # a client's request -> the scheduler's name for it
        self._outer: dict[str, tuple[bytes, str, str]] = {}  # back again, and what it traces to
        self._stalled = False
        self._plan: StepPlan | None = None
        self._planned = False
        self.journal = Journal(scheduler.pool)

    @property
    def busy(self) -> bool:
        """Another step can be made now. False also when all that waits needs news from outside."""
        return not self._scheduler.idle and not self._stalled

    @property
    def compiling(self) -> bool:
        """News may come from `compiled`."""
        return self._compiler.pending > 0

    def submit(self, client: bytes, request: Generate) -> Refused | None:
        """Queue `request`, or say why not."""
        inner = str(next(self._numbers))
        sampling = request.sampling
        if not sampling.ignore_eos:
            sampling = msgspec.structs.replace(sampling, stop_ids=(*self._eos_ids, *sampling.stop_ids))
        held = request.grammar is not None or request.reasoning is not None
        try:
            self._scheduler.add(msgspec.structs.replace(request, id=inner, sampling=sampling), held=held)
        except StokerError as error:
            return Refused(
                id=request.id, kind=error.kind, code=error.code, message=error.message, retry_after=error.retry_after
            )
        if held:
            self._compiler.submit(inner, request.grammar)
        self._inner[client, request.id] = inner
        self._outer[inner] = (client, request.id, request.traceparent)
        self._stalled = False
        return None

    def abort(self, client: bytes, request_id: str) -> None:
        """Free what the request holds, now or when the step in flight has ended. Unknown ids are fine."""
        inner = self._inner.pop((client, request_id), None)
        if inner is not None:
            del self._outer[inner]
            self._scheduler.abort(inner)
            self._stalled = False

    def drop_client(self, client: bytes) -> int:
        """Abort all that `client` asked for; returns how many requests that were."""
        requests = [request_id for owner, request_id in self._inner if owner == client]
        for request_id in requests:
            self.abort(client, request_id)
        return len(requests)

    def compiled(self) -> list[tuple[bytes, Refused]]:
        """Let in the requests whose grammars are ready. Returns those whose grammars are no good, by client."""
        refused: list[tuple[bytes, Refused]] = []
        for inner, error in self._compiler.done():
            self._stalled = False
            if error is None:
                self._scheduler.release(inner)
            elif owner := self._outer.get(inner):
                client, request_id, _ = owner
                self.abort(client, request_id)
                refused.append(
                    (client, Refused(id=request_id, kind=ErrorKind.INVALID, code="invalid_grammar", message=error))
                )
        return refused

    def plan(self) -> float:
        """Decide on the next step, which `step` then makes. Returns the seconds it is predicted to take; 0 if there is
        nothing to do."""
        self._plan = self._scheduler.plan()
        self._planned = True
        self._stalled = self._plan is None
        return self._scheduler.predicted

    def step(self) -> dict[bytes, list[Progress]]:
        """Make the next step. What came of it, by client; empty if there was nothing to do."""
        if not self._planned:
            self.plan()
        plan, self._plan, self._planned = self._plan, None, False
        if plan is None:
            return {}
        news: dict[bytes, list[Progress]] = {}
        for outcome in self._scheduler.apply(self._executor.execute(plan)):
            client, progress = self._report(outcome)
            news.setdefault(client, []).append(progress)
        if self._scheduler.idle:
            for fault in self._scheduler.check():
                log.error("block pool: %s", fault, extra={"action": "pool_check"})
        return news

    def supply(self, client: bytes, digest: bytes, pixels: bytes) -> list[Refused]:
        """Pixels that a client was asked for; empty if it does not have them. Returns those of its requests that cannot
        go on without."""
        refused: list[Refused] = []
        for inner in self._scheduler.images.supply(digest, pixels):
            owner, request_id, _ = self._outer[inner]
            if owner == client:
                self.abort(client, request_id)
                text = "An image of the request was lost before it was needed. Send it again."
                refused.append(Refused(id=request_id, kind=ErrorKind.INTERNAL, code="image_lost", message=text))
        self._stalled = False
        return refused

    def wanted(self) -> dict[bytes, list[bytes]]:
        """Digests of the images that the next steps need, by the client that has them. Each is told once."""
        wanted: dict[bytes, list[bytes]] = {}
        for inner, digest in self._scheduler.images.asked():
            if inner in self._outer:
                wanted.setdefault(self._outer[inner][0], []).append(digest)
        return wanted

    def stats(self) -> EngineStats:
        return msgspec.structs.replace(self._scheduler.stats(), kv_seq=self.journal.seq)

    def _report(self, outcome: Outcome) -> tuple[bytes, Progress]:
        client, request_id, trace = self._outer[outcome.request]
        if outcome.finish is not None:
            del self._outer[outcome.request], self._inner[client, request_id]
        if outcome.error is not None:
            fields = {"action": "request_failed", "traceparent": trace or None}
            log.error("request failed: %s", outcome.error, extra=fields)
        return client, Progress(
            id=request_id,
            tokens=outcome.tokens,
            cached=outcome.cached,
            output=outcome.output,
            waited=outcome.waited,
            queued=outcome.queued,
            prefill=outcome.prefill,
            finish=outcome.finish,
        )
