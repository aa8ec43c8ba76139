"""The executor's logits against transformers, however a sequence is cut into steps, batched, cached and placed.

What "same" means is the rig's: logits within 1e-4 (tiny model) or 1e-3 (demo model).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from parity_rig import (
    CPU,
    GREEDY,
    NEAR_TIE,
    Reference,
    Rig,
    chunks,
    preemption,
    prefix_hits,
    ragged,
    reference_of,
    whole,
)
from transformers import LlamaConfig, LlamaForCausalLM

from stoker.models.context import Graph
from stoker.models.loader import load_graph
from stoker.models.source import ModelFiles
from stoker.models.weights.gguf import GGUFSource
from stoker.types.plan import SequenceStart, StepPlan

GENERATED = 6
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


@pytest.fixture(scope="module")
def tiny(tiny_llama: ModelFiles) -> tuple[Reference, Graph]:
    model = LlamaForCausalLM.from_pretrained(tiny_llama.root, dtype=torch.float32)
    graph = load_graph(tiny_llama, dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)
    return reference_of(model), graph


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


@pytest.mark.parametrize("situation", [whole, chunks, ragged, prefix_hits, preemption])
def test_same_logits(pair: tuple[Reference, Graph], situation: Callable[[Rig], None]) -> None:
    rig = Rig(*pair, shuffled=situation is not whole)
    situation(rig)
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
