"""Known policies, to be beaten: round robin, least tokens, longest match with a guard, predicted seconds with a view of
its own, and one cache shared by all, which no router reaches.

Each knows its own bookkeeping only, exactly and at once, as the best implementation of it could.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol

from bench.routing.cache import Cache, Changes
from bench.routing.segments import Path

RATE, STEP_SECONDS, SLOTS = 12_000.0, 0.040, 64
PRESSURE_SECONDS = 0.15
GUARD_COUNT, GUARD_SHARE, MATCH_SHARE = 64, 1.5, 0.3


class Job:
    """One request on its way. `hit` tokens were cached when its prefill began; `ttft` in seconds."""

    __slots__ = (
        "arrival",
        "expected",
        "hit",
        "name",
        "output",
        "owner",
        "path",
        "replica",
        "session",
        "tokens",
        "ttft",
    )

    def __init__(self, name: int, session: str, path: Path, tokens: int, output: int, arrival: float) -> None:
        self.name, self.session, self.path, self.tokens, self.output = name, session, path, tokens, output
        self.arrival = arrival
        self.replica = self.hit = self.expected = 0
        self.ttft = 0.0
        self.owner: int | None = None  # the frame of its session


class Chooser(Protocol):
    """A policy on the virtual clock. `choose` also sends; the others report what became of a job."""

    def choose(self, job: Job, now: float) -> int: ...

    def began(self, job: Job, now: float) -> None:
        """Its prefill begins, with `job.hit` tokens from the cache."""
        ...

    def answered(self, job: Job, now: float) -> None:
        """Its first token came."""
        ...

    def ended(self, job: Job, now: float) -> None:
        """Its last token came; or, for history that was placed at the start, it never ran."""
        ...

    def cached(self, replica: int, changes: Changes, now: float) -> None:
        """A replica's cache has changed."""
        ...


class Loads:
    """What a policy counts by itself. All costs in seconds."""

    def __init__(self, replicas: int, seed: int) -> None:
        self.replicas = replicas
        self.random = random.Random(seed * 7919 + 1)
        self.inflight = [0] * replicas
        self.tokens = [0] * replicas  # of prompts in flight
        self.queued = [0] * replicas  # uncached tokens that wait, as expected at dispatch
        self.until = [0.0] * replicas  # end of the prefill that runs
        self.hold = 10.0  # seconds that a slot is held

    def sent(self, job: Job, replica: int, expected: int) -> int:
        job.expected = job.tokens - expected
        self.inflight[replica] += 1
        self.tokens[replica] += job.tokens
        self.queued[replica] += job.expected
        return replica

    def began(self, job: Job, now: float) -> None:
        self.queued[job.replica] -= job.expected
        self.until[job.replica] = now + (job.tokens - job.hit) / RATE

    def answered(self, job: Job, now: float) -> None:
        pass

    def ended(self, job: Job, now: float) -> None:
        self.inflight[job.replica] -= 1
        self.tokens[job.replica] -= job.tokens
        if job.ttft:
            took = job.output * STEP_SECONDS + (job.tokens - job.hit) / RATE
            self.hold += 0.01 * (took - self.hold)
        else:
            self.queued[job.replica] -= job.expected

    def cached(self, replica: int, changes: Changes, now: float) -> None:
        pass

    def costs(self, job: Job, hits: Sequence[int], weight: float, now: float) -> list[float]:
        found: list[float] = []
        for i in range(self.replicas):
            running = self.inflight[i]
            wait = max(self.until[i] - now, 0.0) + self.queued[i] / RATE
            if running >= SLOTS:
                wait = max(wait, (running - SLOTS + 1) * self.hold / SLOTS)
                running = SLOTS - 1
            own = weight * (job.tokens - hits[i]) / RATE
            found.append(wait + own + PRESSURE_SECONDS * running / (SLOTS - running))
        return found

    def least(self, values: Sequence[float]) -> int:
        least = min(values)
        equal = [i for i, value in enumerate(values) if value == least]
        return equal[0] if len(equal) == 1 else self.random.choice(equal)


class RoundRobin(Loads):
    def __init__(self, replicas: int, seed: int) -> None:
        super().__init__(replicas, seed)
        self.next = 0

    def choose(self, job: Job, now: float) -> int:
        chosen, self.next = self.next, (self.next + 1) % self.replicas
        return self.sent(job, chosen, 0)


class LeastTokens(Loads):
    """`lot`: fewest prompt tokens in flight."""

    def choose(self, job: Job, now: float) -> int:
        return self.sent(job, self.least(self.tokens), 0)


class Viewing(Loads):
    """With a view of every cache, fed at dispatch."""

    def __init__(self, replicas: int, seed: int, capacity: int, tokens: Sequence[int]) -> None:
        super().__init__(replicas, seed)
        self.views = [Cache(capacity, tokens) for _ in range(replicas)]

    def hits(self, job: Job) -> list[int]:
        return [view.match(job.path) for view in self.views]

    def sent(self, job: Job, replica: int, expected: int) -> int:
        self.views[replica].insert(job.path)
        return super().sent(job, replica, expected)


class Tree(Viewing):
    """`tree`: the longest match, unless it is short or requests in flight differ much; then the fewest in flight."""

    def choose(self, job: Job, now: float) -> int:
        hits = self.hits(job)
        best, most, least = max(hits), max(self.inflight), min(self.inflight)
        if (most - least > GUARD_COUNT and most > GUARD_SHARE * least) or best <= MATCH_SHARE * job.tokens:
            chosen = self.least(self.inflight)
        else:
            chosen = min(
                (i for i, hit in enumerate(hits) if hit == best), key=lambda i: (self.inflight[i], self.random.random())
            )
        return self.sent(job, chosen, hits[chosen])


class Costs(Viewing):
    """`dcostA`: least predicted seconds, where those of recomputation count A times."""

    def __init__(self, replicas: int, seed: int, capacity: int, tokens: Sequence[int], weight: float) -> None:
        super().__init__(replicas, seed, capacity, tokens)
        self.weight = weight

    def choose(self, job: Job, now: float) -> int:
        hits = self.hits(job)
        chosen = self.least(self.costs(job, hits, self.weight, now))
        return self.sent(job, chosen, hits[chosen])


class Pool(Loads):
    """`pool`: one cache of the fleet's size, which every replica reads and fills for free. Least predicted wait."""

    def __init__(self, replicas: int, seed: int, shared: Cache) -> None:
        super().__init__(replicas, seed)
        self.shared = shared

    def choose(self, job: Job, now: float) -> int:
        hit = self.shared.match(job.path)
        return self.sent(job, self.least(self.costs(job, [hit] * self.replicas, 1.0, now)), hit)
