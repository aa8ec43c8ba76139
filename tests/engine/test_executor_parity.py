"""The executor's logits against transformers, however a sequence is cut into steps, batched, cached and placed.

What "same" means: float32, logits within 1e-4 (tiny model) or 1e-3 (demo model), and the same greedy token wherever
the reference's best two logits are at least 0.05 apart, which at least 95 % of positions are.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stoker.engine.compiler import Grammars
from stoker.engine.executor import LocalExecutor
from stoker.models.context import CacheSpec, ForwardContext, Graph
from stoker.models.loader import load_graph
from stoker.models.source import ModelFiles
from stoker.models.weights.gguf import GGUFSource
from stoker.types.plan import SequenceStart, StepPlan, Work
from stoker.types.sampling import SamplingParams

CPU = torch.device("cpu")
BLOCK = 4
NEAR_TIE = 0.05
GENERATED = 6
GREEDY = SamplingParams(temperature=0)
TEXT = """
the capital of France is the city of Paris and the capital of Germany is
water boils at a high temperature because the heat makes the water molecules move
she went to the store to buy some bread and milk for her
one two three four five six seven eight nine
the best way to learn a new language is to
my name is John and I live in New
once upon a time there was a little girl who lived in a
the sun rises in the east and sets in the
in the middle of the night the old man heard a
if you want to be healthy you should eat more
the president of the United States lives in the White
he opened the door and saw that the room was
plants need light and water in order to
a week has seven days and a year has twelve
the book was written by a young woman who
the dog ran after the cat and the cat ran up the
music is a form of art that uses
the first man to walk on the moon was
you can make a cake with flour sugar and
when it rains the ground becomes
a computer is a machine that can
the teacher asked the students to open their
we should protect the environment because it is
most birds can fly but some birds can
the river flows from the mountains to the
""".strip().splitlines()


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
        self.executor = LocalExecutor(
            self.recorder, grammars, num_blocks=count, block_size=BLOCK, device=CPU, dtype=self.dtype
        )
        blocks = list(range(count))
        if self.shuffled:
            random.Random(1).shuffle(blocks)
        self.blocks: Iterator[int] = iter(blocks)
        self.tables: dict[int, list[int]] = {}

    def start(self, seq: int, index: int, shared: list[int] | None = None) -> SequenceStart:
        ids = self.reference.sequences[index]
        self.tables[seq] = list(shared or [])
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
        return Work(seq=seq, start=start, count=count, sample=sample, blocks=fresh, append=append or [])

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


@pytest.fixture(scope="module")
def tiny(tiny_llama: ModelFiles) -> tuple[Reference, Graph]:
    """Random ids, so that every position of the 12 sequences is compared (a prompt of one token)."""
    model = LlamaForCausalLM.from_pretrained(tiny_llama.root, dtype=torch.float32).eval()
    graph = load_graph(tiny_llama, dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)
    draw = random.Random(6)
    lengths = [1, 2, 3, 4, 5, 8, 9, 17, 30, 31, 64, 90]
    sequences = [[draw.randrange(graph.vocab_size) for _ in range(length)] for length in lengths]
    with torch.no_grad():
        logits = [model(torch.tensor([ids])).logits[0] for ids in sequences]
    return Reference(sequences, [1] * len(sequences), logits, 1e-4), graph


@pytest.fixture(scope="module")
def demo(demo_files: ModelFiles) -> tuple[Reference, Graph]:
    """50 prompts of English words, continued greedily by transformers on the weights that our decoder reads."""
    assert demo_files.gguf is not None
    source = GGUFSource(Path(demo_files.gguf))
    config = source.config()
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**config))
    model.to_empty(device="cpu")
    model.model.rotary_emb.__init__(model.config)
    model.load_state_dict({name: source.dense(name, torch.float32) for name in source.names}, strict=False, assign=True)
    model.tie_weights()
    model.eval()
    vocabulary = {token: number for number, token in enumerate(source.metadata["tokenizer.ggml.tokens"])}
    lines = [[vocabulary[f"Ġ{word}"] for word in line.split()] for line in TEXT]
    prompts = lines + [after + before for before, after in zip(lines, lines[1:] + lines[:1], strict=True)]
    assert len(prompts) == 50
    sequences, logits = _continue(model, prompts)
    graph = load_graph(demo_files, dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)
    return Reference(sequences, [len(ids) for ids in prompts], logits, 1e-3), graph


@torch.inference_mode()
def _continue(model: LlamaForCausalLM, prompts: list[list[int]]) -> tuple[list[list[int]], list[torch.Tensor]]:
    """Greedy continuations of GENERATED tokens and the logits of every position from the end of the prompt on."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    cache = None
    taken: list[torch.Tensor] = []
    chosen: list[torch.Tensor] = []
    for count in range(GENERATED + 1):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        out = model(
            ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        cache = out.past_key_values
        taken.append(out.logits[:, -1])
        ids = taken[-1].argmax(-1, keepdim=True)
        mask = torch.cat((mask, torch.ones_like(ids)), dim=1)
        if count < GENERATED:
            chosen.append(ids)
    tails = torch.cat(chosen, dim=1).tolist()
    return [prompt + tail for prompt, tail in zip(prompts, tails, strict=True)], list(torch.stack(taken, dim=1))


@pytest.fixture(params=["tiny", "demo"])
def pair(request: pytest.FixtureRequest) -> tuple[Reference, Graph]:
    return request.getfixturevalue(request.param)


@pytest.fixture
def shuffled_rig(pair: tuple[Reference, Graph]) -> Rig:
    return Rig(*pair, shuffled=True)


def test_whole(pair: tuple[Reference, Graph]) -> None:
    rig = Rig(*pair, shuffled=False)
    for index, ids in enumerate(rig.reference.sequences):
        start = rig.start(index, index)
        rig.step([rig.work(index, 0, len(ids))], [start], {index: index})
    rig.check()


def test_chunks_of_an_odd_size(shuffled_rig: Rig) -> None:
    _run_ragged(shuffled_rig, lambda left: min(7, left), batch=50)
    shuffled_rig.check()


def test_ragged_batches_of_chunks_and_single_tokens(shuffled_rig: Rig) -> None:
    draw = random.Random(3)
    _run_ragged(shuffled_rig, lambda left: 1 if draw.random() < 0.4 else draw.randint(1, left), batch=11)
    shuffled_rig.check()


def test_prefix_hits_on_shared_blocks(shuffled_rig: Rig) -> None:
    """Second sequences read the first ones' full blocks, and compute only the rest, all in one batch."""
    rig = shuffled_rig
    count = len(rig.reference.sequences)
    first = [rig.start(index, index) for index in range(count)]
    whole = [rig.work(index, 0, len(ids)) for index, ids in enumerate(rig.reference.sequences)]
    rig.step(whole, first, {index: index for index in range(count)})
    starts: list[SequenceStart] = []
    work: list[Work] = []
    for index, ids in enumerate(rig.reference.sequences):
        known = max(0, len(ids) - GENERATED - 1) // BLOCK
        starts.append(rig.start(count + index, index, shared=rig.tables[index][:known]))
        work.append(rig.work(count + index, known * BLOCK, len(ids) - known * BLOCK))
    rig.step(work, starts, {count + index: index for index in range(count)})
    rig.check()


def test_after_preemption(shuffled_rig: Rig) -> None:
    """All are forgotten half way and re-entered with the ids known by then, in other blocks."""
    rig = shuffled_rig
    sequences = dict(enumerate(rig.reference.sequences))
    same = {index: index for index in sequences}
    starts = [rig.start(index, index) for index in sequences]
    rig.step([rig.work(index, 0, -(-len(ids) // 2)) for index, ids in sequences.items()], starts, same)
    rig.executor.execute(StepPlan(step=0, finished=list(sequences)))
    starts = [rig.start(index, index) for index in sequences]
    rig.step([rig.work(index, 0, len(ids)) for index, ids in sequences.items()], starts, same)
    rig.check()


def test_greedy_decoding_in_a_batch(demo: tuple[Reference, Graph]) -> None:
    """Free-running: each step appends what the step before sampled. Equal up to the reference's first near-tie."""
    reference, graph = demo
    rig = Rig(reference, graph, shuffled=True)
    lengths = reference.prompt_lens
    prompts = [ids[:length] for ids, length in zip(reference.sequences, lengths, strict=True)]
    starts = [
        SequenceStart(seq=index, token_ids=ids, prompt_len=len(ids), sampling=GREEDY, blocks=[])
        for index, ids in enumerate(prompts)
    ]
    rig.tables = {index: [] for index in range(len(prompts))}
    work = [rig.work(index, 0, length, sample=True) for index, length in enumerate(lengths)]
    outputs: list[list[int]] = [[] for _ in prompts]
    for step in range(GENERATED):
        result = rig.executor.execute(StepPlan(step=step, starts=starts if step == 0 else [], work=work))
        for sampled in result.sampled:
            outputs[sampled.seq].append(sampled.tokens[0].id)
        work = [rig.work(i, lengths[i] + step, 1, append=outputs[i][-1:], sample=True) for i in range(len(prompts))]
    compared = 0
    for index, output in enumerate(outputs):
        best = reference.logits[index].topk(2).values
        ties = (best[:, 0] - best[:, 1] < NEAR_TIE).nonzero().flatten().tolist()
        end = min([*ties, GENERATED])
        assert output[:end] == reference.sequences[index][lengths[index] :][:end]
        compared += end
    assert compared >= 0.7 * GENERATED * len(prompts)


def test_bfloat16_stays_close(demo: tuple[Reference, Graph], demo_files: ModelFiles) -> None:
    """Prompts in the dense layout, then a few rows a step, for which four-bit weights have a layout of their own."""
    reference, _ = demo
    graph = load_graph(demo_files, dtype=torch.bfloat16, device=CPU, progress=lambda stage, fraction: None)
    rig = Rig(reference, graph, shuffled=False, dtype=torch.bfloat16)
    few = range(0, 50, 10)
    same = {index: index for index in few}
    lengths = reference.prompt_lens
    starts = [rig.start(index, index) for index in few]
    rig.step([rig.work(index, 0, lengths[index]) for index in few], starts, same)
    for step in range(GENERATED):
        rig.step([rig.work(index, lengths[index] + step, 1) for index in few], [], same)
    for index in few:
        found = torch.stack([rig.logits[index][lengths[index] - 1 + step] for step in range(GENERATED + 1)])
        want = reference.logits[index]
        error = found - want
        error -= error.mean(dim=-1, keepdim=True)  # a common shift changes no probability
        assert error.square().mean().sqrt() < 0.03 * want.std()
        best = want.topk(2)
        clear = best.values[:, 0] - best.values[:, 1] > 0.5
        assert torch.equal(found.argmax(-1)[clear], best.indices[clear, 0])


def _run_ragged(rig: Rig, piece: Callable[[int], int], batch: int) -> None:
    """Feeds all sequences, at most `batch` in a step, `piece(tokens left)` tokens of each at a time."""
    done = [0] * len(rig.reference.sequences)
    started: set[int] = set()
    step = 0
    while open_ := [i for i, ids in enumerate(rig.reference.sequences) if done[i] < len(ids)]:
        step += 1
        starts: list[SequenceStart] = []
        work: list[Work] = []
        for index in random.Random(step).sample(open_, min(batch, len(open_))):
            if index not in started:
                started.add(index)
                starts.append(rig.start(index, index))
            count = piece(len(rig.reference.sequences[index]) - done[index])
            work.append(rig.work(index, done[index], count))
            done[index] += count
        rig.step(work, starts, {index: index for index in started})
