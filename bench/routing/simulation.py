"""Replicas on a virtual clock, and the traffic that meets them.

A replica serves in order of arrival, one prefill at a time at a constant rate of uncached tokens, and decodes at a
constant pace whatever its load. A request holds a slot from the start of its prefill to its last token; where all are
held, the queue stands. A prompt can be reused when its prefill has ended, an answer only as part of a later prompt.
Time to first token is the end of the prefill less the arrival.

Too simple in known ways: prefill and decode do not slow each other, running requests take no cache room, attention
costs nothing more with length. It orders policies; it does not predict a machine.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from bench.routing.cache import Cache, Changes
from bench.routing.opponents import RATE, SLOTS, STEP_SECONDS, Chooser, Job
from bench.routing.traces import Agents, Arrivals, Call, Fork, Item

WARM_SHARE = 0.4  # of a closed loop's time, before anything is measured


class Outcome(msgspec.Struct, kw_only=True):
    """Shares 0..1, times in seconds. `busy` is the mean share of time in prefill, `skew` the most over the mean;
    `slots_busy` the share of slots held, `work` all prefill seconds, `rate` prompt tokens served a second."""

    hit: float
    p50: float
    p90: float
    p99: float
    skew: float
    busy: float
    slots_busy: float
    work: float
    rate: float
    requests: int
    waiting: int


class Clock:
    """Virtual seconds. Called as the product calls its clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass(slots=True)
class _Frame:
    """A session or sub-agent: what it does next, who waits for it, and for how many it waits."""

    items: list[Item]
    at: int
    parent: int | None
    session: str
    open: int = 0


@dataclass(slots=True)
class _Replica:
    cache: Cache
    queue: deque[Job] = field(default_factory=deque[Job])
    prefilling: Job | None = None
    running: int = 0
    busy: float = 0.0


class Simulation:
    """One run of one policy. Equal seeds give equal arrivals to every policy."""

    def __init__(
        self, caches: Sequence[Cache], chooser: Chooser, clock: Clock, *, warm: float = 0.0, tell: bool = False
    ) -> None:
        self.replicas = [_Replica(cache) for cache in caches]
        self.chooser = chooser
        self.clock = clock
        self.done: list[Job] = []
        self._tell = tell  # changes of caches are reported
        self._warm = warm
        self._slots = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = self._jobs = self._sessions = self._opened = 0
        self._frames: dict[int, _Frame] = {}

    def open(self, traffic: Arrivals, stretch: float) -> Outcome:
        """All of `traffic`, its times multiplied by `stretch`, until the last is served."""
        for seconds, session, call in traffic.calls:
            self._at(seconds * stretch, self._arrival(self._job(session, call, seconds * stretch)))
        self._run(float("inf"))
        return self._outcome()

    def closed(self, traffic: Agents, tokens: list[int], starts: float, seconds: float) -> Outcome:
        """`starts` sessions a second for so many `seconds`, on top of a population met half-way, whose history is
        placed by the policy and cached already. `tokens` are the caches' segments, to which sessions add theirs."""
        draw = random.Random(traffic.seed)
        for _ in range(int(starts * traffic.life)):
            items, at = traffic.session(self._sessions, tokens, True)
            self._sessions += 1
            frame = self._open_frame(items, at, None, str(self._sessions))
            before = next((item for item in reversed(items[:at]) if isinstance(item, Call)), None)
            if before is not None:
                self._place(self._job(str(self._sessions), before, 0.0))
            self._at(draw.random() * traffic.life / traffic.turns, self._advancing(frame))

        def begin() -> None:
            items, at = traffic.session(self._sessions, tokens, False)
            self._sessions += 1
            self._advance(self._open_frame(items, at, None, str(self._sessions)))
            self._at(self.clock.now + draw.expovariate(starts), begin)

        self._at(draw.expovariate(starts), begin)
        self._run(seconds)
        return self._outcome()

    def _run(self, end: float) -> None:
        events = self._events
        while events:
            at, _, happen = heapq.heappop(events)
            if at > end:
                self.clock.now = end
                return
            self.clock.now = at
            happen()

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, happen))

    # one request

    def _job(self, session: str, call: Call, when: float) -> Job:
        self._jobs += 1
        return Job(self._jobs, session, call.path, call.tokens, call.output, when)

    def _arrival(self, job: Job) -> Callable[[], None]:
        def arrive() -> None:
            job.replica = self.chooser.choose(job, self.clock.now)
            self.replicas[job.replica].queue.append(job)
            self._start(job.replica)

        return arrive

    def _place(self, job: Job) -> None:
        job.replica = self.chooser.choose(job, self.clock.now)
        self._insert(job)
        self.chooser.ended(job, self.clock.now)

    def _start(self, number: int) -> None:
        replica = self.replicas[number]
        if replica.prefilling is not None or not replica.queue or replica.running >= SLOTS:
            return
        job = replica.queue.popleft()
        job.hit = min(replica.cache.match(job.path), job.tokens - 1)
        took = (job.tokens - job.hit) / RATE
        replica.prefilling = job
        replica.running += 1
        if self.clock.now >= self._warm:
            replica.busy += took
            self._slots += took + job.output * STEP_SECONDS
        self.chooser.began(job, self.clock.now)
        self._at(self.clock.now + took, lambda: self._prefilled(job))

    def _prefilled(self, job: Job) -> None:
        self.replicas[job.replica].prefilling = None
        self._insert(job)
        job.ttft = self.clock.now - job.arrival
        self.done.append(job)
        self.chooser.answered(job, self.clock.now)
        self._at(self.clock.now + job.output * STEP_SECONDS, lambda: self._ended(job))
        self._start(job.replica)

    def _insert(self, job: Job) -> None:
        changes = Changes() if self._tell else None
        self.replicas[job.replica].cache.insert(job.path, changes)
        if changes is not None:
            self.chooser.cached(job.replica, changes, self.clock.now)

    def _ended(self, job: Job) -> None:
        self.replicas[job.replica].running -= 1
        self.chooser.ended(job, self.clock.now)
        self._start(job.replica)
        if job.owner is not None:
            self._advance(job.owner)

    # one session

    def _open_frame(self, items: list[Item], at: int, parent: int | None, session: str) -> int:
        self._opened += 1
        number = self._opened
        self._frames[number] = _Frame(items, at, parent, session)
        return number

    def _advancing(self, frame: int) -> Callable[[], None]:
        return lambda: self._advance(frame)

    def _advance(self, number: int) -> None:
        """The next call of a session, or its next sub-agents, or its end."""
        frame = self._frames[number]
        if frame.at >= len(frame.items):
            del self._frames[number]
            if frame.parent is not None:
                parent = self._frames[frame.parent]
                parent.open -= 1
                if not parent.open:
                    self._advance(frame.parent)
            return
        forks: list[Fork] = []
        while frame.at < len(frame.items) and isinstance(fork := frame.items[frame.at], Fork):
            forks.append(fork)
            frame.at += 1
        if forks:
            frame.open = len(forks)
            for fork in forks:
                self._advance(self._open_frame(fork.calls, 0, number, frame.session))
            return
        call = frame.items[frame.at]
        assert isinstance(call, Call)
        when = self.clock.now + (call.think if frame.at else 0.0)
        frame.at += 1
        job = self._job(frame.session, call, when)
        job.owner = number
        self._at(when, self._arrival(job))

    # the end

    def _outcome(self) -> Outcome:
        warm, now = self._warm, self.clock.now
        waits = [job.ttft for job in self.done if job.arrival >= warm]
        waits += [now - job.arrival for replica in self.replicas for job in replica.queue if job.arrival >= warm]
        waits.sort()
        counted = [job for job in self.done if job.arrival + job.ttft >= warm]
        tokens, hit = sum(job.tokens for job in counted), sum(job.hit for job in counted)
        busy = [replica.busy for replica in self.replicas]
        mean, span = sum(busy) / len(busy), max(now - warm, 1e-9)

        def quantile(share: float) -> float:
            return waits[min(len(waits) - 1, int(share * len(waits)))] if waits else float("nan")

        return Outcome(
            hit=hit / max(tokens, 1),
            p50=quantile(0.5),
            p90=quantile(0.9),
            p99=quantile(0.99),
            skew=max(busy) / mean if mean else 0.0,
            busy=mean / span,
            slots_busy=self._slots / (SLOTS * len(busy) * span),
            work=sum(job.tokens - job.hit for job in self.done) / RATE,
            rate=tokens / span,
            requests=len(self.done),
            waiting=sum(len(replica.queue) for replica in self.replicas),
        )
