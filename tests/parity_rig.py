"""Feeds known sequences to the executor piece by piece and compares its logits with a reference's.

What "same" means: float32, logits within a tolerance (1e-4 for tiny models), and the same greedy token wherever the
reference's best two logits are at least 0.05 apart, which at least 95 % of positions are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.engine.compiler import Grammars
from stoker.engine.executor import LocalExecutor
from stoker.models.context import CacheSpec, ForwardContext, Graph, Mtp, Vision
from stoker.models.loader import load_graph
from stoker.models.source import ModelFiles
from stoker.types.plan import SequenceStart, StepPlan, Work
from stoker.types.sampling import SamplingParams

CPU = torch.device("cpu")
BLOCK = 4
NEAR_TIE = 0.05
LENGTHS = [1, 2, 3, 4, 5, 8, 9, 17, 30, 31, 64, 100]
GREEDY = SamplingParams(temperature=0)


@dataclass
class Reference:
    """Sequences as transformers continued them, and its logits from the last token of each prompt on."""

    sequences: list[list[int]]
    prompt_lens: list[int]
    logits: list[torch.Tensor]
    tolerance: float


class Recorder:
    """A graph that keeps the hidden states of its last batch."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.hidden = torch.empty(0)

    @property
    def caches(self) -> list[CacheSpec]:
        return list(self.graph.caches)

    @property
    def vocab_size(self) -> int:
        return self.graph.vocab_size

    @property
    def vision(self) -> Vision | None:
        return self.graph.vision

    @property
    def mtp(self) -> Sequence[Mtp]:
        return self.graph.mtp

    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        self.hidden = self.graph.forward(token_ids, context)
        return self.hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.graph.logits(hidden)


@dataclass
class Rig:
    """An executor that is fed known sequences piece by piece; collects their logits."""

    reference: Reference
    graph: Graph
    shuffled: bool
    dtype: torch.dtype = torch.float32
    logits: dict[int, dict[int, torch.Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = sum(len(ids) // BLOCK + 1 for ids in self.reference.sequences) * 2
        self.recorder = Recorder(self.graph)
        grammars = Grammars(lambda: pytest.fail("no sequence of this test has a grammar"))
        states = 2 * sum(map(len, self.reference.sequences))  # a slot for every piece: none is written twice
        self.executor = LocalExecutor(
            self.recorder,
            grammars,
            num_blocks=count,
            block_size=BLOCK,
            num_states=states,
            device=CPU,
            dtype=self.dtype,
        )
        blocks = list(range(count))
        if self.shuffled:
            random.Random(1).shuffle(blocks)
        self.blocks: Iterator[int] = iter(blocks)
        self.tables: dict[int, list[int]] = {}
        self.states: Iterator[int] = iter(range(states))
        self.state: dict[int, int | None] = {}  # of sequences, after their last work

    def start(self, seq: int, index: int, shared: list[int] | None = None, state: int | None = None) -> SequenceStart:
        ids = self.reference.sequences[index]
        self.tables[seq] = list(shared or [])
        self.state[seq] = state
        return SequenceStart(
            seq=seq,
            token_ids=ids,
            prompt_len=self.reference.prompt_lens[index],
            sampling=GREEDY,
            blocks=self.tables[seq].copy(),
        )

    def work(self, seq: int, start: int, count: int, append: list[int] | None = None, *, sample: bool = False) -> Work:
        table = self.tables[seq]
        fresh = [next(self.blocks) for _ in range(-(-(start + count) // BLOCK) - len(table))]
        table += fresh
        source, self.state[seq] = self.state.get(seq), next(self.states)
        return Work(
            seq=seq,
            start=start,
            count=count,
            sample=sample,
            blocks=fresh,
            append=append or [],
            source=source,
            target=self.state[seq],
        )

    @torch.inference_mode()
    def step(self, work: list[Work], starts: list[SequenceStart], indices: dict[int, int]) -> None:
        """Runs one plan and files what came of it under the sequences' indices."""
        self.executor.execute(StepPlan(step=0, starts=starts, work=work))
        row = 0
        for item in work:
            index = indices[item.seq]
            first = max(item.start, self.reference.prompt_lens[index] - 1)
            wanted = self.recorder.hidden[row + first - item.start : row + item.count]
            if len(wanted):
                found = self.graph.logits(wanted)
                self.logits.setdefault(index, {}).update(enumerate(found, start=first))
            row += item.count

    def check(self) -> None:
        """Every position from the end of the prompt on was computed, and is what the reference computed."""
        positions = near = 0
        for index, ids in enumerate(self.reference.sequences):
            expected = self.reference.logits[index]
            first = self.reference.prompt_lens[index] - 1
            for position in range(first, len(ids)):
                want, found = expected[position - first], self.logits[index][position]
                assert (want - found).abs().max() < self.reference.tolerance, (index, position)
                best = want.topk(2)
                positions += 1
                if best.values[0] - best.values[1] < NEAR_TIE:
                    near += 1
                else:
                    assert found.argmax() == best.indices[0]
        assert near <= 0.05 * positions


def whole(rig: Rig) -> None:
    """Each sequence in one piece, alone."""
    for index, ids in enumerate(rig.reference.sequences):
        start = rig.start(index, index)
        rig.step([rig.work(index, 0, len(ids))], [start], {index: index})


def chunks(rig: Rig) -> None:
    """Pieces of an odd size, all sequences in one batch."""
    _run_ragged(rig, lambda left: min(7, left), batch=50)


def ragged(rig: Rig) -> None:
    """Batches of some sequences, pieces of any size and single tokens mixed."""
    draw = random.Random(3)
    _run_ragged(rig, lambda left: 1 if draw.random() < 0.4 else draw.randint(1, left), batch=11)


def decode(rig: Rig) -> None:
    """All prompts' first halves in one batch, then one token of each at a time."""
    halves = [-(-len(ids) // 2) for ids in rig.reference.sequences]
    _run_ragged(rig, lambda left: 1, batch=50, first=halves)


def prefix_hits(rig: Rig) -> None:
    """Second sequences read the first ones' full blocks, and compute only the rest, all in one batch."""
    sequences = rig.reference.sequences
    count, same = len(sequences), {index: index for index in range(len(sequences))}
    known = [max(0, len(ids) - 7) // BLOCK * BLOCK for ids in sequences]
    starts = [rig.start(index, index) for index in range(count)]
    rig.step([rig.work(index, 0, known[index]) for index in range(count) if known[index]], starts, same)
    left = dict(rig.state)
    rig.step([rig.work(index, known[index], len(ids) - known[index]) for index, ids in enumerate(sequences)], [], same)
    starts = [
        rig.start(count + index, index, shared=rig.tables[index][: known[index] // BLOCK], state=left[index])
        for index in range(count)
    ]
    work = [rig.work(count + index, known[index], len(ids) - known[index]) for index, ids in enumerate(sequences)]
    rig.step(work, starts, {count + index: index for index in range(count)})


def preemption(rig: Rig) -> None:
    """All are forgotten half way and re-entered with the ids known by then, in other blocks."""
    sequences = dict(enumerate(rig.reference.sequences))
    same = {index: index for index in sequences}
    starts = [rig.start(index, index) for index in sequences]
    rig.step([rig.work(index, 0, -(-len(ids) // 2)) for index, ids in sequences.items()], starts, same)
    rig.executor.execute(StepPlan(step=0, finished=list(sequences)))
    starts = [rig.start(index, index) for index in sequences]
    rig.step([rig.work(index, 0, len(ids)) for index, ids in sequences.items()], starts, same)


SITUATIONS: list[Callable[[Rig], None]] = [whole, chunks, ragged, decode, prefix_hits, preemption]


def randomise(model: torch.nn.Module, seed: int = 20) -> None:
    """Every parameter and stored buffer of a transformers model: norms 0.5 to 1.5, biases near 0, matrices such that
    they keep the size of what they multiply, a head that spreads logits."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in sorted(model.state_dict().items()):
            if name.endswith("e_score_correction_bias"):
                tensor.normal_(0.0, 0.3, generator=draw)
            elif name.endswith("bias"):
                tensor.normal_(0.0, 0.2, generator=draw)
            elif tensor.ndim == 1:
                tensor.uniform_(0.5, 1.5, generator=draw)
            elif "embed_tokens" in name:
                tensor.normal_(0.0, 1.0, generator=draw)
            else:
                tensor.normal_(0.0, (5 if "lm_head" in name else 1) * tensor.shape[-1] ** -0.5, generator=draw)


def reference_of(model: Any) -> Reference:
    """Random ids, of which every position is compared (prompts of one token)."""
    draw = random.Random(6)
    sequences = [[draw.randrange(model.config.vocab_size) for _ in range(length)] for length in LENGTHS]
    with torch.no_grad():
        logits = [model.eval()(torch.tensor([ids])).logits[0] for ids in sequences]
    return Reference(sequences, [1] * len(sequences), logits, 1e-4)


def save_and_load(model: Any, folder: Path) -> tuple[Reference, Graph]:
    """Writes a transformers model as a checkpoint, loads that as a graph; what the model says is the reference."""
    model.save_pretrained(folder)
    files = ModelFiles(name="tiny", root=str(folder), gguf=None)
    graph = load_graph(files, dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)
    return reference_of(model), graph


def _run_ragged(rig: Rig, piece: Callable[[int], int], batch: int, first: list[int] | None = None) -> None:
    """Feeds all sequences, at most `batch` in a step, `piece(tokens left)` tokens of each at a time, or at first
    `first` of each."""
    done = [0] * len(rig.reference.sequences)
    started: set[int] = set()
    step = 0
    while open_ := [i for i, ids in enumerate(rig.reference.sequences) if done[i] < len(ids)]:
        step += 1
        starts: list[SequenceStart] = []
        work: list[Work] = []
        for index in random.Random(step).sample(open_, min(batch, len(open_))):
            count = piece(len(rig.reference.sequences[index]) - done[index])
            if index not in started:
                started.add(index)
                starts.append(rig.start(index, index))
                count = count if first is None else first[index]
            work.append(rig.work(index, done[index], count))
            done[index] += count
        rig.step(work, starts, {index: index for index in started})
