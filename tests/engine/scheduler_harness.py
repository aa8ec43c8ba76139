"""A scheduler with an executor that knows what every KV slot holds, and refuses to read anything else.

The KV of a token is the identity of the chain (domain, all ids up to it): a number from a trie, so two slots compare
equal exactly if they hold the KV of the same chain. A state is the number of the last token that it has seen. A token
of an image is what the image's features say, and its id counts for nothing. The token that follows a chain is a fixed
pseudo-random function of it, so what a request generates does not depend on scheduling.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from stoker.engine.blocks import BlockPool
from stoker.engine.images import ImageLimits
from stoker.engine.limits import Limits
from stoker.engine.scheduler import Outcome, Scheduler
from stoker.engine.states import StatePool
from stoker.types.lane import Lane
from stoker.types.plan import ImageAt, Sampled, StepPlan, StepResult
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, ImageSpan, SampledToken

VOCAB = 50


def ids(n: int, seed: int = 0) -> list[int]:
    """A prompt of `n` ids; different seeds share no prefix worth the name."""
    return random.Random(seed).choices(range(50), k=n)


class Trie:
    def __init__(self) -> None:
        self.children: dict[tuple[object, int], int] = {}

    def child(self, parent: object, token: int) -> int:
        return self.children.setdefault((parent, token), len(self.children))

    def token(self, node: object) -> int:
        """The last token of a chain."""
        return next(token for (_, token), child in self.children.items() if child == node)

    def chain(self, domain: str, ids: list[int]) -> list[int]:
        out: list[int] = []
        node: object = domain
        for token in ids:
            node = self.child(node, token)
            out.append(node)
        return out


def image_token(digest: bytes, place: int) -> int:
    """What token `place` of an image means, instead of its id."""
    return 1000 + int.from_bytes(digest[:8], "big") * 1000 + place


def pixels_of(image: ImageSpan) -> bytes:
    """Pixels by which the executor below knows the image."""
    return (image.digest * image.height * image.width)[: image.height * image.width * 3]


def seen(ids: list[int], images: Sequence[ImageSpan]) -> list[int]:
    """A prompt as the model reads it."""
    ids = list(ids)
    for image in images:
        for place in range(image.tokens):
            ids[image.start + place] = image_token(image.digest, place)
    return ids


def next_token(domain: str, ids: list[int]) -> int:
    mixed = len(domain)
    for token in ids:
        mixed = (mixed * 1_000_003 + token + 7) % 2_147_483_647
    return mixed % VOCAB


class Row:
    def __init__(
        self, domain: str, ids: list[int], blocks: list[int], sampling: SamplingParams, images: list[ImageAt]
    ) -> None:
        self.domain, self.ids, self.blocks, self.sampling = domain, list(ids), list(blocks), sampling
        self.images = images


class ContentExecutor:
    """Obeys plans over explicit KV; every read asserts that the slot holds the KV of exactly this token chain."""

    def __init__(self, num_blocks: int, block_size: int, states: int = 0) -> None:
        self.states: list[object] = [None] * states
        self.kv: list[object] = [None] * (num_blocks * block_size)
        self.block_size = block_size
        self.trie = Trie()
        self.rows: dict[int, Row] = {}
        self.domains: list[str] = []  # of sequence n
        self.seeds: dict[int, int | None] = {}
        self.fail: set[int] = set()
        self.features: dict[int, bytes] = {}  # of image n: its digest
        self.encoded: list[bytes] = []

    def execute(self, plan: StepPlan) -> StepResult:
        for number in plan.finished:
            del self.rows[number]
        for number in plan.forget:
            del self.features[number]
        for image in plan.encode:
            assert image.number not in self.features, "encoded twice"
            assert len(image.pixels) == image.height * image.width * 3
            self.features[image.number] = image.pixels[:16]
            self.encoded.append(image.pixels[:16])
        for start in plan.starts:
            assert start.seq not in self.rows, "entered twice"
            assert self.seeds.setdefault(start.seq, start.sampling.seed) == start.sampling.seed is not None
            self.rows[start.seq] = Row(
                self.domains[start.seq], start.token_ids, start.blocks, start.sampling, start.images
            )
        sampled: list[Sampled] = []
        written: set[int] = set()
        targets = [work.target for work in plan.work]
        if self.states:
            assert len(set(targets)) == len(targets), "two sequences leave their states in one slot"
            assert not any(work.source in targets for work in plan.work if work.source != work.target), "read or write?"
        for work in plan.work:
            row = self.rows[work.seq]
            row.ids += work.append
            row.blocks += work.blocks
            assert work.count > 0
            assert len(set(row.blocks)) == len(row.blocks)
            for image in row.images:
                for position in range(image.start, image.start + image.tokens):
                    if work.start <= position < work.start + work.count:
                        row.ids[position] = image_token(self.features[image.number], position - image.start)
                    elif position < work.start and row.ids[position] < 1000:  # computed by somebody else
                        known = self.kv[
                            row.blocks[position // self.block_size] * self.block_size + position % self.block_size
                        ]
                        row.ids[position] = self.trie.token(known)
            content = self.trie.chain(row.domain, row.ids)
            slots = [
                row.blocks[t // self.block_size] * self.block_size + t % self.block_size
                for t in range(work.start + work.count)
            ]
            for position in range(work.start):
                assert self.kv[slots[position]] == content[position], "read the KV of another chain"
            for position in range(work.start, work.start + work.count):
                assert slots[position] not in written, "two sequences write one slot in one step"
                written.add(slots[position])
                self.kv[slots[position]] = content[position]
            if self.states:
                assert work.target is not None
                before = None if work.source is None else self.states[work.source]
                assert before == (content[work.start - 1] if work.start else None), "went on from another state"
                self.states[work.target] = content[work.start + work.count - 1]
            assert work.sample == (work.start + work.count == len(row.ids))
            if work.sample:
                if work.seq in self.fail:
                    sampled.append(Sampled(seq=work.seq, error="logits are not finite"))
                else:
                    token = SampledToken(next_token(row.domain, row.ids))
                    sampled.append(Sampled(seq=work.seq, tokens=[token]))
        return StepResult(step=plan.step, sampled=sampled)


class Rig:
    """Scheduler, pool, executor and a clock that moves a second per step. Collects what every request was told."""

    def __init__(
        self,
        *,
        blocks: int = 32,
        block_size: int = 4,
        step_tokens: int = 16,
        prefill_tokens: int | None = None,
        max_running: int = 8,
        max_waiting: int = 1000,
        context: int = 10_000,
        lane_reserve: tuple[float, float] = (0.1, 0.02),
        states: int = 0,
        every: int | None = None,
        images: ImageLimits | None = None,
    ) -> None:
        """`states` > 0: a model that keeps states, in so many slots, with snapshots at `every` tokens of prompts."""
        self.now = 0.0
        self.pool = BlockPool(blocks, block_size)
        self.states = StatePool(states, self.pool, every) if states else None
        self.limits = Limits(
            vocab_size=VOCAB,
            context=context,
            step_tokens=step_tokens,
            prefill_tokens=prefill_tokens or step_tokens,
            max_running=max_running,
            max_waiting=max_waiting,
            lane_reserve=lane_reserve,
            images=images,
        )
        seeds = iter(range(1 << 30))
        self.scheduler = Scheduler(
            self.pool,
            self.limits,
            key=b"test key",
            fingerprint="model",
            clock=lambda: self.now,
            draw_seed=lambda: next(seeds),
            states=self.states,
        )
        self.executor = ContentExecutor(blocks, block_size, states)
        self.requests: dict[str, Generate] = {}
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, Outcome] = {}
        self.first_step: dict[str, int] = {}
        self.added: dict[str, int] = {}  # steps made before; those added past this rig come before the first
        self.steps = 0
        self.plans: list[StepPlan] = []

    def add(
        self,
        name: str,
        ids: list[int],
        *,
        max_tokens: int | None = 4,
        lane: Lane = Lane.STANDARD,
        domain: str = "",
        stop_ids: tuple[int, ...] = (),
        min_tokens: int = 0,
        links: bytes = b"",
        images: Sequence[ImageSpan] = (),
    ) -> int:
        """Queue a request; returns the number by which the executor will know it."""
        request = Generate(
            id=name,
            prompt_ids=ids,
            sampling=SamplingParams(max_tokens=max_tokens, stop_ids=stop_ids, min_tokens=min_tokens),
            lane=lane,
            domain=domain,
            links=links,
            images=list(images),
        )
        self.scheduler.add(request)
        self.requests[name] = request
        self.tokens[name] = []
        self.last.pop(name, None)
        self.added[name] = self.steps
        self.executor.domains.append(domain)
        return len(self.executor.domains) - 1

    def take(self, outcome: Outcome) -> None:
        assert outcome.request not in self.last or self.last[outcome.request].finish is None, "news after the end"
        self.tokens[outcome.request] += [token.id for token in outcome.tokens]
        self.first_step.setdefault(outcome.request, self.steps)
        first = outcome.request not in self.last and outcome.finish != "abort"
        assert outcome.waited == (self.steps - self.added.get(outcome.request, 0) if first else 0), "told once"
        if outcome.request in self.last:
            assert outcome.cached == self.last[outcome.request].cached, "cached is fixed"
        self.last[outcome.request] = outcome

    def step(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is None:
            return None
        self.finish_step(plan)
        return plan

    def finish_step(self, plan: StepPlan) -> None:
        decoding = any(work.append for work in plan.work)
        budget = self.limits.step_tokens if decoding else max(self.limits.prefill_tokens, self.limits.step_tokens)
        assert sum(work.count for work in plan.work) <= budget
        self.plans.append(plan)
        result = self.executor.execute(plan)
        self.now += 1.0
        self.steps += 1
        for outcome in self.scheduler.apply(result):
            self.take(outcome)

    def abort(self, name: str) -> None:
        outcome = self.scheduler.abort(name)
        if outcome is not None:
            self.take(outcome)

    def drain(self, limit: int = 10_000) -> None:
        """Run until nothing is left; that this ends is the liveness test."""
        for _ in range(limit):
            if self.step() is None:
                break
        assert self.scheduler.idle, f"stuck: {self.scheduler.stats()}"
        assert self.scheduler.check() == []
        assert self.pool.in_use == 0
        assert self.states is None or self.states.pool.in_use == 0

    def expected(self, name: str) -> tuple[list[int], str]:
        """Output and finish reason of a request by direct computation, without scheduler or cache."""
        request = self.requests[name]
        sampling = request.sampling
        ids = seen(request.prompt_ids, request.images)
        out: list[int] = []
        room = self.scheduler.context - len(ids)
        bound = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
        while len(out) < bound:
            token = next_token(request.domain, ids)
            if token in sampling.stop_ids and len(out) >= sampling.min_tokens:
                return out, "stop"
            ids.append(token)
            out.append(token)
        return out, "length"

    def assert_as_expected(self, name: str) -> None:
        assert (self.tokens[name], self.last[name].finish) == self.expected(name)
