"""How the executor obeys plans, over a graph whose next token is computable by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from stoker.engine.compiler import Grammars
from stoker.engine.executor import LocalExecutor, kv_bytes_per_token
from stoker.models.context import BatchLayout, CacheSpec, ForwardContext, Mtp, PagedSpec
from stoker.models.text.model import TextModel
from stoker.types.plan import SequenceStart, StepPlan, Work
from stoker.types.sampling import SamplingParams

VOCAB, BLOCK = 50, 4
POISON = 49


class CountingGraph:
    """Predicts the sum of all of a sequence's ids modulo VOCAB, which it only knows from the cache.

    One head of size 2: values are (id, 0), keys and queries 0, so attention gives the mean id of the context. The id
    POISON makes its own sequence's logits NaN.
    """

    def __init__(self) -> None:
        self.layouts: list[BatchLayout] = []
        self.asked: list[int] = []

    @property
    def caches(self) -> Sequence[CacheSpec]:
        return [PagedSpec(kv_heads=1, head_dim=2)]

    @property
    def vocab_size(self) -> int:
        return VOCAB

    @property
    def vision(self) -> None:
        return None

    @property
    def mtp(self) -> Sequence[Mtp]:
        return ()

    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        self.layouts.append(context.layout)
        values = torch.stack((token_ids.float(), torch.zeros(len(token_ids))), dim=-1)[:, None]
        values[token_ids == POISON] = float("nan")
        zeros = torch.zeros(len(token_ids), 1, 2)
        mean = context.paged(0).attend(zeros, zeros, values, 1.0)[:, 0, 0]
        return (mean * (context.layout.positions + 1))[:, None]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        self.asked.append(len(hidden))
        sums = hidden[:, 0]
        distance = (sums.nan_to_num().round() % VOCAB)[:, None] - torch.arange(VOCAB)
        return -distance.abs() + (sums * 0)[:, None]


def no_grammars() -> Grammars:
    def load() -> TextModel:
        raise AssertionError("no sequence of this test has a grammar")

    return Grammars(load)


def make(graph: CountingGraph | None = None) -> LocalExecutor:
    device = torch.device("cpu")
    return LocalExecutor(
        graph or CountingGraph(),
        no_grammars(),
        num_blocks=32,
        block_size=BLOCK,
        device=device,
        dtype=torch.float32,
    )


def start(seq: int, ids: list[int], blocks: list[int] | None = None) -> SequenceStart:
    sampling = SamplingParams(temperature=0)
    return SequenceStart(seq=seq, token_ids=ids, prompt_len=len(ids), sampling=sampling, blocks=blocks or [])


def run(executor: LocalExecutor, *work: Work, starts: Sequence[SequenceStart] = ()) -> list[int | str | None]:
    plan = StepPlan(step=7, starts=list(starts), work=list(work))
    result = executor.execute(plan)
    assert result.step == 7
    assert [one.seq for one in result.sampled] == [item.seq for item in work if item.sample]
    return [one.error or one.tokens[0].id for one in result.sampled]


def test_prefill_then_decode_with_appended_ids_and_blocks() -> None:
    executor = make()
    work = Work(seq=1, start=0, count=3, sample=True, blocks=[9])
    assert run(executor, work, starts=[start(1, [1, 2, 3])]) == [6]
    assert run(executor, Work(seq=1, start=3, count=1, sample=True, append=[6])) == [12]
    assert run(executor, Work(seq=1, start=4, count=1, sample=True, append=[12], blocks=[2])) == [24]


def test_only_the_rows_asked_for_reach_the_head() -> None:
    graph = CountingGraph()
    executor = make(graph)
    starts = [start(1, [1, 2, 3]), start(2, [4, 5, 6, 7, 8]), start(3, [9])]
    work = [
        Work(seq=1, start=0, count=3, sample=True, blocks=[0]),
        Work(seq=2, start=0, count=4, sample=False, blocks=[1]),
        Work(seq=3, start=0, count=1, sample=True, blocks=[2]),
    ]
    assert run(executor, *work, starts=starts) == [6, 9]
    assert graph.asked == [2]
    assert run(executor, Work(seq=2, start=4, count=1, sample=True, blocks=[3])) == [30]
    assert run(executor, Work(seq=1, start=3, count=1, sample=False, append=[6])) == []
    assert graph.asked == [2, 1]


def test_layout_of_a_ragged_batch() -> None:
    graph = CountingGraph()
    executor = make(graph)
    starts = [start(1, [1] * 6, [5, 3]), start(2, [2] * 9, [7, 6, 10])]
    run(
        executor,
        Work(seq=1, start=4, count=2, sample=False),
        Work(seq=2, start=3, count=4, sample=False),
        starts=starts,
    )
    layout = graph.layouts[0]
    assert layout.positions.tolist() == [4, 5, 3, 4, 5, 6]
    assert layout.slots.tolist() == [12, 13, 31, 24, 25, 26]
    assert layout.query_starts == [0, 2, 6]
    assert layout.context_lens == [6, 7]
    assert layout.tables.tolist() == [[5, 3], [7, 6]]
    assert layout.block_size == BLOCK


def test_logits_that_are_not_finite_are_one_sequences_own_error() -> None:
    executor = make()
    starts = [start(1, [1, 2]), start(2, [POISON, 2]), start(3, [3, 4])]
    work = [Work(seq=seq, start=0, count=2, sample=True, blocks=[seq]) for seq in (1, 2, 3)]
    good, bad, other = run(executor, *work, starts=starts)
    assert (good, other) == (3, 7)
    assert isinstance(bad, str)
    assert "finite" in bad
    # the poisoned block goes to another sequence, which must not read what was left in it
    executor.execute(StepPlan(step=0, finished=[2]))
    reused = Work(seq=4, start=0, count=1, sample=True, blocks=[2])
    assert run(executor, reused, Work(seq=1, start=2, count=1, sample=True, append=[3]), starts=[start(4, [8])]) == [
        8,
        6,
    ]


def test_finished_ids_may_be_used_again_in_the_same_plan() -> None:
    executor = make()
    run(executor, Work(seq=1, start=0, count=1, sample=True, blocks=[0]), starts=[start(1, [5])])
    work = Work(seq=1, start=0, count=2, sample=True, blocks=[4])
    result = executor.execute(StepPlan(step=1, finished=[1], starts=[start(1, [6, 7])], work=[work]))
    assert result.sampled[0].tokens[0].id == 13


def test_a_plan_without_work_is_answered() -> None:
    executor = make()
    assert executor.execute(StepPlan(step=3, starts=[start(1, [1])])).sampled == []
    assert executor.execute(StepPlan(step=4, finished=[1])).sampled == []


@pytest.mark.parametrize(
    "plan",
    [
        StepPlan(step=1, finished=[8]),
        StepPlan(step=1, work=[Work(seq=8, start=0, count=1, sample=True)]),
        StepPlan(step=1, work=[Work(seq=1, start=0, count=3, sample=True)]),
        StepPlan(step=1, work=[Work(seq=1, start=2, count=3, sample=True, append=[1, 2, 3])]),
    ],
    ids=["unknown finished", "unknown work", "unknown token", "no block"],
)
def test_a_plan_that_contradicts_the_past_raises(plan: StepPlan) -> None:
    executor = make()
    executor.execute(StepPlan(step=0, starts=[start(1, [1, 2], [0])]))
    with pytest.raises(LookupError):
        executor.execute(plan)


def test_composition_of_the_batch_does_not_matter() -> None:
    prompts = {seq: [seq, 2 * seq, 3] for seq in range(1, 6)}
    results: list[dict[int, int | str | None]] = []
    for order in ([1, 2, 3, 4, 5], [4, 2, 5, 1, 3]):
        executor = make()
        work = [Work(seq=seq, start=0, count=3, sample=True, blocks=[seq]) for seq in order]
        results.append(
            dict(zip(order, run(executor, *work, starts=[start(s, prompts[s]) for s in order]), strict=True))
        )
    assert results[0] == results[1] == {seq: 3 * seq + 3 for seq in prompts}


def test_cache_sizes() -> None:
    graph = CountingGraph()
    assert kv_bytes_per_token(graph, torch.float32) == 16
    assert kv_bytes_per_token(graph, torch.bfloat16) == 8
