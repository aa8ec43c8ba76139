"""Rank 0's head: which sequences compute how many tokens in the next step, and what came of the last one.

Owns requests by id, step plans and their results, finish reasons and statistics. Who has slots and blocks is decided
in `residency.py`, how the token budget is shared in `budget.py`, what may be shared in `chain.py`, when images are
encoded in `images.py`. Pure Python with an
injected clock: no torch, no sockets, one thread. The caller alternates `plan` and `apply`; `add` and `abort` may come
at any time between.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from stoker.engine.blocks import BlockPool
from stoker.engine.budget import Demand, reserves, share
from stoker.engine.chain import Chain, ChainRoot
from stoker.engine.images import Images, places
from stoker.engine.limits import Limits, refuse_impossible
from stoker.engine.residency import Residency
from stoker.engine.sequence import Sequence, State
from stoker.engine.speed import Speed
from stoker.engine.states import StatePool
from stoker.types.chat import FinishReason
from stoker.types.errors import ErrorKind, StokerError, invalid
from stoker.types.lane import Lane
from stoker.types.plan import Sampled, SequenceStart, StepPlan, StepResult, Work
from stoker.types.wire import EngineStats, Generate, SampledToken


@dataclass(frozen=True, slots=True)
class Outcome:
    """News of one request after a step; the last one carries `finish`. Field by field what `wire.Progress` says."""

    request: str
    tokens: list[SampledToken]
    cached: int
    output: int
    waited: int = 0
    queued: float = 0.0
    prefill: float = 0.0
    finish: FinishReason | None = None
    error: str | None = None


@dataclass(slots=True)
class _Flight:
    """The step that is being executed: `prefill` and `decode` tokens, predicted to take so many seconds."""

    plan: StepPlan
    since: float
    sequences: list[Sequence]  # in the order of plan.work
    prefill: int
    decode: int
    predicted: float
    aborted: set[int] = field(default_factory=set[int])


@dataclass(slots=True)
class _Counters:
    steps: int = 0
    step_seconds: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    cached_tokens: int = 0
    recomputed_tokens: int = 0
    failed_checks: int = 0
    after_abort: int = 0


class Scheduler:
    """`key` and `fingerprint` go into every chain root (see `ChainRoot`)."""

    def __init__(
        self,
        pool: BlockPool,
        limits: Limits,
        *,
        key: bytes,
        fingerprint: str,
        clock: Callable[[], float] = time.monotonic,
        draw_seed: Callable[[], int] = lambda: secrets.randbits(63),
        states: StatePool | None = None,
    ) -> None:
        self.pool = pool
        self.states = states
        self.limits = limits
        self.context = min(limits.context, pool.num_blocks * pool.block_size)
        self._key = key
        self._fingerprint = fingerprint
        self._clock = clock
        self._draw_seed = draw_seed
        self._reserve = reserves(limits.step_tokens, limits.lane_reserve)
        self._residency = Residency(pool, limits.max_running, limits.lane_reserve, states)
        self.images = Images(limits.images)
        self._live: dict[str, Sequence] = {}
        self._next_number = 0
        self._flight: _Flight | None = None
        self._landed: list[Work] = []  # of the last step that was applied
        self._speed = Speed()
        self._last_finish: float | None = None
        self._finish_interval = 1.0
        self._count = _Counters()

    def add(self, request: Generate, *, held: bool = False) -> None:
        """Queue a request; if `held` it is not let in before `release`. Raises StokerError: INVALID if it can never
        run, CAPACITY if its lane's line is full."""
        if request.id in self._live:
            raise invalid("duplicate_request_id", f"request {request.id} is running already")
        refuse_impossible(request, self.limits, self.context, self.pool.block_size)
        if len(self._residency.waiting[request.lane]) >= self.limits.max_waiting:
            raise StokerError(
                ErrorKind.CAPACITY,
                "queue_full",
                f"{self.limits.max_waiting} {request.lane.name.lower()} requests are waiting already",
                retry_after=min(60.0, max(1.0, self._finish_interval)),
            )
        sampling = request.sampling
        if sampling.seed is None:
            # Drawn here and not in a rank: all ranks must agree, and a log of plans must replay.
            sampling = msgspec.structs.replace(sampling, seed=self._draw_seed())
        root = ChainRoot(fingerprint=self._fingerprint, adapter=request.adapter, domain=request.domain)
        room = self.context - len(request.prompt_ids)
        seq = Sequence(
            number=self._next_number,
            request=request.id,
            token_ids=[*request.prompt_ids, *request.output_ids],
            output=len(request.output_ids),
            sampling=sampling,
            lane=request.lane,
            chain=Chain(root, self._key, self.pool.block_size, request.links, request.images),
            max_output=room if sampling.max_tokens is None else min(sampling.max_tokens, room),
            grammar=request.grammar,
            reasoning=request.reasoning,
            arrived=self._count.steps,
            came=self._clock(),
            held=held,
            images=self.images.enter(request.domain, request.images),
        )
        self._next_number += 1
        self._live[request.id] = seq
        self._residency.enqueue(seq)

    def release(self, request_id: str) -> None:
        """A request that was added `held` may run now. Unknown ids are fine."""
        if seq := self._live.get(request_id):
            seq.held = False

    def abort(self, request_id: str) -> Outcome | None:
        """End a request wherever it is; None if there is none. Its last news is returned at once; its blocks are free
        at once too, or when the step that writes to them has been applied."""
        seq = self._live.get(request_id)
        if seq is None:
            return None
        flight = self._flight
        if flight is not None and seq in flight.sequences:
            flight.aborted.add(seq.number)
            del self._live[request_id]
        else:
            self._count.after_abort += sum(work.count for work in self._landed if work.seq == seq.number)
            self._end(seq)
        return Outcome(request_id, [], seq.hit or 0, seq.output, finish="abort")

    def plan(self) -> StepPlan | None:
        """The next step, or None if there is nothing to compute."""
        assert self._flight is None, "the last plan has not been applied"
        residency = self._residency
        residency.admit()
        running = sorted(residency.running.values(), key=lambda s: (not s.decoding, s.lane, s.number))
        demands = [Demand(seq.lane, residency.wants(seq), seq.decoding) for seq in running]
        somebody_waits = any(demand.decode for demand in demands)
        budget = self.limits.step_tokens if somebody_waits else self.limits.prefill_tokens
        chunks: list[tuple[Sequence, int]] = []
        for seq, granted in zip(running, share(budget, demands, self._reserve), strict=True):
            if granted and seq.state is State.RUNNING and (count := residency.grow(seq, granted)):
                chunks.append((seq, count))
        chunks = [(seq, count) for seq, count in chunks if seq.state is State.RUNNING]  # the rest was preempted since
        chunks = self.images.see(chunks)
        if not chunks:
            return None
        starts = [self._start(seq) for seq, _ in chunks if seq.sent == 0]
        work = [self._work(seq, count) for seq, count in chunks]
        plan = StepPlan(
            step=self._count.steps,
            finished=residency.departed,
            forget=self.images.forgets,
            encode=self.images.encodes,
            starts=starts,
            work=work,
        )
        residency.departed = []
        decode = sum(seq.decoding for seq, _ in chunks)
        prefill = sum(count for _, count in chunks) - decode
        predicted = self._speed.predict(prefill, decode, images=bool(plan.encode))
        self._flight = _Flight(plan, self._clock(), [seq for seq, _ in chunks], prefill, decode, predicted)
        return plan

    def apply(self, result: StepResult) -> list[Outcome]:
        """Take in the result of the last plan: counters move, full pages are published, tokens are accepted."""
        flight, self._flight = self._flight, None
        assert flight is not None, "no step is under way"
        assert result.step == flight.plan.step, "a result must answer the last plan"
        sampled = {s.seq: s for s in result.sampled}
        outcomes: list[Outcome] = []
        for seq, work in zip(flight.sequences, flight.plan.work, strict=True):
            self._tally(seq, work)
            outcome = self._accept(seq, sampled[seq.number]) if work.sample else None
            if outcome is not None and outcome.error is not None:
                self.pool.retract(seq.blocks)  # its KV may be what is wrong: nobody else shall find it
            else:
                self._residency.publish(seq)
            if seq.number in flight.aborted:
                self._count.after_abort += work.count
                self._end(seq)
            elif outcome is not None:
                outcomes.append(outcome)
                if outcome.finish is not None:
                    self._end(seq)
        self._count.steps += 1
        self._count.step_seconds = self._clock() - flight.since
        encoded = bool(flight.plan.encode)
        self._speed.measured(flight.prefill, flight.decode, self._count.step_seconds, images=encoded)
        self._landed = flight.plan.work
        return outcomes

    def check(self) -> list[str]:
        """What is wrong with the pool and who holds it, in words; counted, never raised. For idle moments."""
        faults = self._residency.check()
        self._count.failed_checks += bool(faults)
        return faults

    @property
    def predicted(self) -> float:
        """Seconds that the step which has been planned will take; 0 if there is none."""
        return self._flight.predicted if self._flight else 0.0

    @property
    def idle(self) -> bool:
        """Nothing runs and nothing waits."""
        return not self._live and self._flight is None

    def stats(self) -> EngineStats:
        """A snapshot for the heartbeat."""
        running, waiting = self._residency.running.values(), self._residency.waiting
        queued = sum(seq.pending for seq in running if not seq.decoding)
        for line in waiting.values():
            for seq in line:
                queued += seq.known - self.pool.reach(seq.chain.links[: seq.matchable]) * self.pool.block_size
        return EngineStats(
            steps=self._count.steps,
            running=len(running),
            waiting=sum(map(len, waiting.values())),
            waiting_by_lane=(len(waiting[Lane.INTERACTIVE]), len(waiting[Lane.STANDARD]), len(waiting[Lane.BATCH])),
            kv_tokens=self.pool.num_blocks * self.pool.block_size,
            queued_tokens=queued,
            prefill_rate=self._speed.prefill_rate,
            decode_seconds=self._speed.decode_seconds,
            predicted=self.predicted,
            after_abort=self._count.after_abort,
            blocks_free=self.pool.free,
            blocks_cached=self.pool.cached,
            blocks_in_use=self.pool.in_use,
            wasted_slots=sum(len(s.blocks) * self.pool.block_size - s.computed for s in running),
            step_seconds=self._count.step_seconds,
            prefill_tokens=self._count.prefill_tokens,
            decode_tokens=self._count.decode_tokens,
            cached_tokens=self._count.cached_tokens,
            preemptions=self._residency.preemptions,
            recomputed_tokens=self._count.recomputed_tokens,
            evictions=self.pool.evictions,
            failed_checks=self._count.failed_checks,
            image_tokens=self.images.tokens,
            states_free=0 if self.states is None else self.states.pool.free,
            states_cached=0 if self.states is None else self.states.pool.cached,
            states_in_use=0 if self.states is None else self.states.pool.in_use,
        )

    def _start(self, seq: Sequence) -> SequenceStart:
        if seq.hit is None:
            seq.hit, seq.entered = seq.cached, self._clock()
            self._count.cached_tokens += seq.cached
        seq.sent, seq.placed = seq.known, len(seq.blocks)
        return SequenceStart(
            seq=seq.number,
            token_ids=list(seq.token_ids),
            prompt_len=seq.prompt_len,
            sampling=seq.sampling,
            blocks=list(seq.blocks),
            grammar=seq.grammar,
            reasoning=seq.reasoning,
            images=places(seq.images),
        )

    def _work(self, seq: Sequence, count: int) -> Work:
        work = Work(
            seq=seq.number,
            start=seq.computed,
            count=count,
            sample=count == seq.pending,
            append=seq.token_ids[seq.sent :],
            blocks=seq.blocks[seq.placed :],
            source=seq.slot,
            target=seq.target,
        )
        seq.sent, seq.placed = seq.known, len(seq.blocks)
        return work

    def _tally(self, seq: Sequence, work: Work) -> None:
        if seq.decoding:
            self._count.decode_tokens += work.count
        else:
            self._count.prefill_tokens += work.count
        self._count.recomputed_tokens += seq.advance(computed=work.count)

    def _accept(self, seq: Sequence, sampled: Sampled) -> Outcome:
        """Append what was sampled, up to the token that ends the output."""
        tokens: list[SampledToken] = []
        finish: FinishReason | None = None if sampled.error is None else "error"
        for token in sampled.tokens if finish is None else ():
            seq.output += 1
            if token.id in seq.stop_ids and seq.output > seq.sampling.min_tokens:
                finish = "stop"
                break
            tokens.append(token)
            seq.advance(accepted=(token.id,))
            if seq.output >= seq.max_output:
                finish = "length"
                break
        assert finish or tokens, "a sampling sequence must get a token or an error"
        outcome = Outcome(seq.request, tokens, seq.hit or 0, seq.output, finish=finish, error=sampled.error)
        if seq.waited:
            return outcome
        seq.waited = self._count.steps + 1 - seq.arrived
        queued, prefill = seq.entered - seq.came, self._clock() - seq.entered
        return replace(outcome, waited=seq.waited, queued=queued, prefill=prefill)

    def _end(self, seq: Sequence) -> None:
        self._residency.leave(seq)
        self.images.leave(seq.request, seq.images)
        if self._live.get(seq.request) is seq:
            del self._live[seq.request]
        now = self._clock()
        if self._last_finish is not None:
            self._finish_interval += 0.2 * (now - self._last_finish - self._finish_interval)
        self._last_finish = now
