"""Obeys step plans: keeps what a rank must remember of each sequence, and turns a plan into one batch on the graph.

Decides nothing: which sequence runs, where its blocks are and when it ends is written in the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch

from stoker.engine.compiler import Grammars
from stoker.engine.grammar import Constraint
from stoker.engine.kv import BatchContext, StateMoves, make_store
from stoker.engine.sampler import Allowed, SamplerRow, sample
from stoker.models.context import BatchLayout, Embedded, Graph, RecurrentSpec
from stoker.types.plan import Encode, Sampled, SequenceStart, StepPlan, StepResult, Work


class Executor(Protocol):
    """Runs plans in the order given, on however many ranks."""

    def execute(self, plan: StepPlan) -> StepResult: ...


def kv_bytes_per_token(graph: Graph, dtype: torch.dtype) -> int:
    """Bytes that one token takes in the caches of all layers."""
    return sum(spec.bytes_per_token(dtype.itemsize) for spec in graph.caches)


def bytes_per_state(graph: Graph, dtype: torch.dtype) -> int:
    """Bytes of what all layers keep of one sequence, however long; 0 for most models."""
    return sum(spec.bytes_per_sequence(dtype.itemsize) for spec in graph.caches if isinstance(spec, RecurrentSpec))


class LocalExecutor:
    """The one rank of a replica: graph, cache, grammars and sampler on one device of this process.

    `num_blocks` blocks of `block_size` tokens; block ids in plans are 0..num_blocks - 1, those of state slots 0..
    num_states - 1. A plan that contradicts what was planned before (an unknown sequence, tokens that are not known yet)
    is a bug of its writer and raises.
    """

    def __init__(
        self,
        graph: Graph,
        grammars: Grammars,
        *,
        num_blocks: int,
        block_size: int,
        num_states: int = 0,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._graph = graph
        self._grammars = grammars
        self._block_size = block_size
        self._device = device
        self._empty_state = num_states if any(isinstance(spec, RecurrentSpec) for spec in graph.caches) else None
        self._stores = [make_store(spec, num_blocks * block_size, num_states, dtype, device) for spec in graph.caches]
        self._sequences: dict[int, _Sequence] = {}
        self._features: dict[int, torch.Tensor] = {}  # of each image [tokens, hidden]

    @torch.inference_mode()
    def execute(self, plan: StepPlan) -> StepResult:
        for seq in plan.finished:
            del self._sequences[seq]
        for number in plan.forget:
            del self._features[number]
        for image in plan.encode:
            self._features[image.number] = self._encode(image)
        for start in plan.starts:
            self._sequences[start.seq] = _Sequence(start, self._grammars.constraint(start))
        if not plan.work:
            return StepResult(step=plan.step, sampled=[])
        for work in plan.work:
            self._sequences[work.seq].grow(work)
        token_ids, layout, tables = self._batch(plan.work)
        hidden = self._graph.forward(token_ids, BatchContext(layout, tables, self._stores, self._moves(plan.work)))
        return StepResult(step=plan.step, sampled=self._sample(plan.work, hidden, layout.query_starts))

    def _batch(self, work: Sequence[Work]) -> tuple[torch.Tensor, BatchLayout, np.ndarray]:
        sequences = [self._sequences[item.seq] for item in work]
        starts = np.array([item.start for item in work])
        counts = np.array([item.count for item in work])
        ends = starts + counts
        borders = np.concatenate(([0], np.cumsum(counts)))
        pages = -(-ends // self._block_size)
        tables = np.zeros((len(work), pages.max()), dtype=np.int64)
        for row, (sequence, count) in enumerate(zip(sequences, pages, strict=True)):
            tables[row, :count] = sequence.blocks.view(count)
        positions = np.arange(borders[-1]) + np.repeat(starts - borders[:-1], counts)
        rows = np.repeat(np.arange(len(work)), counts)
        slots = tables[rows, positions // self._block_size] * self._block_size + positions % self._block_size
        ids = np.concatenate(
            [sequence.ids.view(end)[start:] for sequence, start, end in zip(sequences, starts, ends, strict=True)]
        )
        layout = BatchLayout(
            positions=self._to_device(positions),
            slots=self._to_device(slots),
            query_starts=borders.tolist(),
            context_lens=ends.tolist(),
            tables=self._to_device(tables),
            block_size=self._block_size,
            embedded=self._embedded(work, sequences, borders),
        )
        return self._to_device(ids), layout, tables

    def _encode(self, image: Encode) -> torch.Tensor:
        assert self._graph.vision is not None, "a plan for a model that takes no images"
        pixels = np.frombuffer(image.pixels, dtype=np.uint8).reshape(image.height, image.width, 3)
        return self._graph.vision.encode(torch.from_numpy(pixels.copy()))

    def _embedded(self, work: Sequence[Work], sequences: Sequence[_Sequence], borders: np.ndarray) -> list[Embedded]:
        """What of the batch's rows is images: of each as much as its sequence computes now."""
        found: list[Embedded] = []
        for item, sequence, row in zip(work, sequences, borders, strict=False):
            for image in sequence.images:
                first = max(image.start, item.start)
                last = min(image.start + image.tokens, item.start + item.count)
                if first < last:
                    values = self._features[image.number]
                    assert len(values) == image.tokens, "an image has as many features as tokens"
                    part = values[first - image.start : last - image.start]
                    found.append(Embedded(int(row) + first - item.start, part))
        return found

    def _moves(self, work: Sequence[Work]) -> StateMoves | None:
        if self._empty_state is None:
            return None
        sources = [self._empty_state if item.source is None else item.source for item in work]
        targets = np.array([item.target for item in work], dtype=np.int64)
        return StateMoves(self._to_device(np.array(sources)), self._to_device(targets))

    def _sample(self, work: Sequence[Work], hidden: torch.Tensor, borders: Sequence[int]) -> list[Sampled]:
        chosen = [index for index, item in enumerate(work) if item.sample]
        if not chosen:
            return []
        last = torch.tensor([borders[index + 1] - 1 for index in chosen], device=self._device)
        logits = self._graph.logits(hidden.index_select(0, last))
        seqs = [work[index].seq for index in chosen]
        sequences = [self._sequences[seq] for seq in seqs]
        # On a GPU the step is still being computed while the masks are made here.
        allowed = self._allowed(sequences)
        outcomes = sample(logits, [sequence.row for sequence in sequences], allowed)
        for row, sequence in enumerate(sequences):
            if sequence.constraint is not None and sequence.constraint.error is not None:
                outcomes[row] = sequence.constraint.error
        return [
            Sampled(seq=seq, error=outcome) if isinstance(outcome, str) else Sampled(seq=seq, tokens=[outcome])
            for seq, outcome in zip(seqs, outcomes, strict=True)
        ]

    def _allowed(self, sequences: Sequence[_Sequence]) -> Allowed | None:
        """The masks of the sequences that have one now."""
        bound = [(row, s.constraint) for row, s in enumerate(sequences) if s.constraint is not None]
        if not bound:
            return None
        words = np.empty((len(bound), self._grammars.guide.words), dtype=np.int32)
        rows: list[int] = []
        for row, constraint in bound:
            if constraint.fill(words[len(rows)]):
                rows.append(row)
        return Allowed(rows, torch.from_numpy(words[: len(rows)])) if rows else None

    def _to_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


class _Sequence:
    """All ids known so far, the block table, what the sampler remembers, and what may be sampled."""

    def __init__(self, start: SequenceStart, constraint: Constraint | None) -> None:
        self.ids = _Growing(start.token_ids)
        self.blocks = _Growing(start.blocks)
        self.row = SamplerRow(start.sampling, start.token_ids, start.prompt_len)
        self.constraint = constraint
        self.images = start.images

    def grow(self, work: Work) -> None:
        self.ids.extend(work.append)
        self.blocks.extend(work.blocks)
        self.row.append(work.append)
        if self.constraint is not None:
            self.constraint.accept(work.append)


class _Growing:
    """An int64 array that grows at its end in amortised constant time."""

    def __init__(self, values: Sequence[int]) -> None:
        self._data = np.array(values, dtype=np.int64)
        self._size = len(values)

    def extend(self, values: Sequence[int]) -> None:
        if not values:
            return
        end = self._size + len(values)
        if end > len(self._data):
            grown = np.zeros(max(end, 2 * len(self._data), 16), dtype=np.int64)
            grown[: self._size] = self._data[: self._size]
            self._data = grown
        self._data[self._size : end] = values
        self._size = end

    def view(self, count: int) -> np.ndarray:
        """The first `count` values, not to be written. Raises IndexError if there are fewer."""
        if count > self._size:
            raise IndexError(f"{count} values of {self._size}")
        return self._data[:count]
