"""The product's router as a chooser: the very object that a server uses, told of the same things in the same order.

What a server's pool does, this does: `route`, `dispatch`, first token, last token, and the engines' KV events with
sequence numbers, which here come at once. Blocks are the product's logical blocks of 64 tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from bench.routing.cache import BLOCK, Changes
from bench.routing.opponents import RATE, SLOTS, STEP_SECONDS, Job
from stoker.fleet.router import ReplicaInfo, Router, RouterConfig, RouteRequest
from stoker.types.wire import KVEvents, KVSnapshot


class Links:
    """Names of the blocks of each segment, 16 bytes each, made when first asked for."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens
        self._known: dict[int, list[bytes]] = {}

    def of(self, s: int) -> list[bytes]:
        known = self._known.get(s)
        if known is None:
            known = self._known[s] = [(s << 32 | at).to_bytes(16) for at in range(self._tokens[s] // BLOCK)]
        return known


class Product:
    def __init__(
        self, replicas: int, capacity: int, tokens: Sequence[int], config: RouterConfig, clock: Callable[[], float]
    ) -> None:
        self.router = Router(config, clock)
        self._links = Links(tokens)
        self._names = [f"model/{number}" for number in range(replicas)]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._seq = [0] * replicas
        for name in self._names:
            self.router.add(
                ReplicaInfo(
                    name=name,
                    capacity_tokens=capacity,
                    block_tokens=BLOCK,
                    slots=SLOTS,
                    prefill_rate=RATE,
                    step_seconds=STEP_SECONDS,
                )
            )
            self.router.snapshot(name, KVSnapshot(seq=0, blocks=b"", first=True))

    def choose(self, job: Job, now: float) -> int:
        request = RouteRequest(
            id=str(job.name),
            tenant="tenant",
            session=job.session,
            blocks=list(chain.from_iterable(map(self._links.of, job.path))),
            tokens=job.tokens,
            output=job.output,
        )
        decision = self.router.route(request)
        self.router.dispatch(request, decision)
        return self._numbers[decision.replica]

    def began(self, job: Job, now: float) -> None:
        pass

    def answered(self, job: Job, now: float) -> None:
        self.router.begun(str(job.name), job.hit)

    def ended(self, job: Job, now: float) -> None:
        self.router.finished(str(job.name))

    def cached(self, replica: int, changes: Changes, now: float) -> None:
        stored = b"".join(chain.from_iterable(self._links.of(s)[a:b] for s, a, b in changes.gained if a < b))
        removed = b"".join(chain.from_iterable(self._links.of(s)[b:a] for s, a, b in changes.lost if b < a))
        if stored or removed:
            self._seq[replica] += 1
            news = KVEvents(seq=self._seq[replica], stored=stored, removed=removed)
            assert self.router.events(self._names[replica], news), "no event is ever lost here"
