"""The real scheduler, executor and a tiny model together: what comes out does not depend on what else goes on."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from transformers import LlamaForCausalLM

from stoker.config import EngineConfig
from stoker.engine.build import build_core
from stoker.engine.core import EngineCore
from stoker.engine.spec import EngineSpec
from stoker.models.info import read_info
from stoker.models.source import ModelError, ModelFiles
from stoker.types.lane import Lane
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, Progress, Refused

Maker = Callable[..., EngineCore]
ONE, TWO = b"client one", b"client two"
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
NEAR_TIE = 0.05


@pytest.fixture
def make(tiny_llama: ModelFiles) -> Maker:
    """`make(blocks=..., **EngineConfig fields)` -> a core over the tiny model in float32."""
    info = read_info(tiny_llama)

    def build(blocks: int = 512, **fields: object) -> EngineCore:
        block = 2 * 2 * 16 * 3 * 4 * 16  # k and v, KV heads, head_dim, layers, bytes, tokens
        settings = {"device": "cpu", "dtype": "float32", "kv_memory": blocks * block, **fields}
        spec = EngineSpec(
            files=tiny_llama,
            info=info,
            config=EngineConfig(**settings),  # pyright: ignore[reportArgumentType]
            endpoint="",
            chain_key="22" * 32,
        )
        return build_core(spec, lambda stage, fraction: None)

    return build


def prompts(count: int, seed: int, longest: int = 120) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(400) for _ in range(draw.randint(1, longest))] for _ in range(count)]


class Reader:
    """Submits to a core, steps it, and keeps what each request got."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, Progress] = {}

    def submit(
        self,
        name: str,
        ids: list[int],
        sampling: SamplingParams = GREEDY,
        client: bytes = ONE,
        lane: Lane = Lane.STANDARD,
    ) -> Refused | None:
        self.tokens[name] = []
        return self.core.submit(client, Generate(id=name, prompt_ids=ids, sampling=sampling, lane=lane))

    def step(self) -> None:
        for progress in (item for news in self.core.step().values() for item in news):
            self.tokens[progress.id] += [token.id for token in progress.tokens]
            assert progress.id not in self.last or self.last[progress.id].finish is None, "news after the end"
            self.last[progress.id] = progress

    def finish(self) -> dict[str, list[int]]:
        for _ in range(20_000):
            if not self.core.busy:
                return self.tokens
            self.step()
        raise AssertionError("it does not end")


def whole(core: EngineCore) -> None:
    """Nothing runs, nothing is held, nothing is lost."""
    stats = core.stats()
    assert (stats.running, stats.waiting, stats.blocks_in_use, stats.wasted_slots) == (0, 0, 0, 0)
    assert stats.failed_checks == 0


def test_greedy_output_is_that_of_transformers(make: Maker, tiny_llama: ModelFiles) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny_llama.root, dtype=torch.float32).eval()
    asked = prompts(20, seed=1)
    reader = Reader(make(step_tokens=48))
    for i, ids in enumerate(asked):
        reader.submit(str(i), ids)
    compared = 0
    for name, output in reader.finish().items():
        ids = asked[int(name)]
        with torch.inference_mode():
            logits = model(torch.tensor([ids + output])).logits[0, len(ids) - 1 : -1]
        best = logits.topk(2).values
        ties = (best[:, 0] - best[:, 1] < NEAR_TIE).nonzero().flatten().tolist()
        end = min([*ties, len(output)])
        assert output[:end] == logits.argmax(-1).tolist()[:end]
        compared += end
    assert compared >= 0.7 * 20 * 24
    whole(reader.core)


@pytest.mark.parametrize("step_tokens", [7, 64])
def test_preemption_changes_nothing_but_time(make: Maker, step_tokens: int) -> None:
    asked = prompts(16, seed=2, longest=20)
    long = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    roomy = Reader(make())
    for i, ids in enumerate(asked):
        roomy.submit(str(i), ids, long)
        roomy.finish()
    tight = Reader(make(blocks=14, step_tokens=step_tokens, max_running=6))
    for i, ids in enumerate(asked):
        tight.submit(str(i), ids, long)
    assert tight.finish() == roomy.tokens
    assert tight.core.stats().preemptions > 0
    assert tight.core.stats().recomputed_tokens > 0
    whole(tight.core)


def test_a_hit_gives_the_same_tokens_as_a_miss(make: Maker) -> None:
    """T-35: twice the same prompt, a longer one, and one that parts in the middle of a block."""
    base = prompts(1, seed=3)[0] + prompts(1, seed=4)[0]
    parted = [*base[:-5], 1, 2, 3, 4, 5]
    cases = [base, base, base + base, parted]
    cold = []
    for ids in cases:
        reader = Reader(make())
        reader.submit("cold", ids)
        cold.append(reader.finish()["cold"])
    warm = Reader(make())
    for i, ids in enumerate(cases):
        warm.submit(str(i), ids)
        warm.finish()
    assert list(warm.tokens.values()) == cold
    assert [warm.last[str(i)].cached > 0 for i in range(4)] == [False, True, True, True]


def test_seeds_do_not_depend_on_the_company(make: Maker) -> None:
    sampling = SamplingParams(temperature=0.9, top_p=0.9, seed=7, max_tokens=20, ignore_eos=True)
    alone = Reader(make())
    ids = prompts(1, seed=5)[0]
    alone.submit("x", ids, sampling)
    expected = alone.finish()["x"]
    crowd = Reader(make())
    for i, other in enumerate(prompts(10, seed=6)):
        crowd.submit(str(i), other, SamplingParams(seed=i, max_tokens=30))
    crowd.submit("x", ids, sampling)
    assert crowd.finish()["x"] == expected


def test_the_models_own_end_token_ends_unless_ignored(make: Maker, tiny_llama: ModelFiles) -> None:
    eos = read_info(tiny_llama).eos_ids[0]
    sampling = SamplingParams(temperature=0.0, max_tokens=5, logit_bias={eos: 100.0})
    reader = Reader(make())
    reader.submit("ends", [5, 6, 7], sampling)
    reader.submit(
        "goes on", [5, 6, 7], SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True, logit_bias={eos: 100.0})
    )
    reader.finish()
    assert (reader.tokens["ends"], reader.last["ends"].finish, reader.last["ends"].output) == ([], "stop", 1)
    assert (reader.tokens["goes on"], reader.last["goes on"].finish) == ([eos] * 5, "length")


def test_a_thousand_random_aborts_leave_the_pool_whole(make: Maker) -> None:
    draw = random.Random(8)
    core = make(blocks=40, step_tokens=64, max_running=8)
    reader = Reader(core)
    shared = prompts(1, seed=9)[0]
    live: list[tuple[bytes, str]] = []
    aborted = submitted = 0
    while aborted < 1000:
        if len(live) < 12:
            submitted += 1
            client, name = draw.choice((ONE, TWO)), f"r{submitted}"
            ids = shared[: draw.randint(0, len(shared))] + prompts(1, seed=submitted, longest=60)[0]
            reader.submit(name, ids, client=client, lane=draw.choice(list(Lane)))
            live.append((client, name))
        if draw.random() < 0.7:
            reader.step()
        if live and draw.random() < 0.9:
            core.abort(*live.pop(draw.randrange(len(live))))
            aborted += 1
        if draw.random() < 0.01:
            aborted += core.drop_client(TWO)
            live = [entry for entry in live if entry[0] != TWO]
    for entry in live:
        core.abort(*entry)
        core.abort(*entry)
    reader.submit("after", shared, client=TWO)
    assert len(reader.finish()["after"]) == GREEDY.max_tokens
    whole(core)


def test_an_abort_frees_at_the_next_step(make: Maker) -> None:
    reader = Reader(make())
    reader.submit("long", prompts(1, seed=10)[0], SamplingParams(max_tokens=800, ignore_eos=True))
    for _ in range(3):
        reader.step()
    assert reader.core.stats().blocks_in_use > 0
    reader.core.abort(ONE, "long")
    reader.step()
    whole(reader.core)
    assert not reader.core.busy


def test_the_same_name_from_two_clients_is_two_requests(make: Maker) -> None:
    core = make()
    first, second = prompts(2, seed=11)
    for client, ids in ((ONE, first), (TWO, second)):
        assert core.submit(client, Generate(id="same", prompt_ids=ids, sampling=GREEDY)) is None
    core.abort(ONE, "same")
    finishes: list[tuple[bytes, str | None]] = []
    while core.busy:
        finishes += [(client, item.finish) for client, news in core.step().items() for item in news if item.finish]
    assert finishes == [(TWO, "length")]


def test_refusals_name_both_numbers(make: Maker) -> None:
    reader = Reader(make(context=100))
    refused = reader.submit("big", [1] * 100)
    assert refused is not None
    assert refused.code == "context_length_exceeded"
    assert "100" in refused.message
    assert reader.submit("fits", [1] * 99) is None
    assert len(reader.finish()["fits"]) == 1, "max_tokens is clamped to the context"


def test_no_room_for_a_single_block_is_an_error(make: Maker) -> None:
    with pytest.raises(ModelError, match="KV memory"):
        make(blocks=0, kv_memory=10)
    with pytest.raises(ModelError, match="device"):
        make(device="nonsense")
