"""The real scheduler, executor and a tiny Kimi-Linear: states follow their sequences through all that happens."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from kimi_linear_models import KIMI, tiny_kimi_linear

from stoker.config import EngineConfig
from stoker.engine.build import build_core
from stoker.engine.core import EngineCore
from stoker.engine.spec import EngineSpec
from stoker.models.info import read_info
from stoker.models.source import ModelError, ModelFiles
from stoker.types.lane import Lane
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate

TOKEN = 2 * (16 + 6) * 4  # latent layers, values, bytes
STATE = 3 * (3 * 5 * 8 * 2 + 5 * 8 * 8) * 4  # layers of (channels x taps + heads x key x value)
PAGE = 16
Maker = Callable[..., EngineCore]
Model = Callable[[list[int]], torch.Tensor]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFiles, Model]:
    folder = tmp_path_factory.mktemp("kimi_linear")
    model = tiny_kimi_linear({})
    model.save_pretrained(folder)

    @torch.inference_mode()
    def logits(ids: list[int]) -> torch.Tensor:
        return model(torch.tensor([ids])).logits[0]

    return ModelFiles(name="tiny", root=str(folder), gguf=None), logits


@pytest.fixture
def make(files: tuple[ModelFiles, Model]) -> Maker:
    """`make(blocks=, slots=, **EngineConfig fields)`."""
    info = read_info(files[0])

    def build(blocks: int = 200, slots: int = 40, **fields: object) -> EngineCore:
        memory = blocks * PAGE * TOKEN + slots * STATE
        settings = {"device": "cpu", "dtype": "float32", "kv_memory": memory, "state_slots": slots, **fields}
        spec = EngineSpec(
            files=files[0],
            info=info,
            config=EngineConfig(**settings),  # pyright: ignore[reportArgumentType]
            endpoint="",
            chain_key="22" * 32,
        )
        return build_core(spec, lambda stage, fraction: None)

    return build


class Client:
    """Asks for greedy continuations, and compares what comes with the reference."""

    def __init__(self, core: EngineCore, model: Model) -> None:
        self.core, self.model = core, model
        self.prompts: dict[str, list[int]] = {}
        self.tokens: dict[str, list[int]] = {}
        self.cached: dict[str, int] = {}

    def ask(self, name: str, ids: list[int], max_tokens: int = 12, lane: Lane = Lane.STANDARD) -> None:
        self.prompts[name], self.tokens[name] = ids, []
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        assert self.core.submit(b"c", Generate(id=name, prompt_ids=ids, sampling=sampling, lane=lane)) is None

    def step(self) -> None:
        for progress in (item for news in self.core.step().values() for item in news):
            self.tokens[progress.id] += [token.id for token in progress.tokens]
            self.cached[progress.id] = progress.cached

    def finish(self) -> None:
        for _ in range(5000):
            if not self.core.busy:
                break
            self.step()
        stats = self.core.stats()
        assert (stats.running, stats.blocks_in_use, stats.states_in_use, stats.failed_checks) == (0, 0, 0, 0)

    def check(self) -> None:
        """After whatever came before it, each token is the reference's best, wherever that is not nearly a tie."""
        compared = total = 0
        for name, output in self.tokens.items():
            ids = self.prompts[name]
            best = self.model(ids + output)[len(ids) - 1 : -1].topk(2)
            clear = best.values[:, 0] - best.values[:, 1] >= 0.05
            assert torch.equal(torch.tensor(output)[clear], best.indices[clear, 0]), name
            compared, total = compared + int(clear.sum()), total + len(output)
        assert compared >= 0.95 * total


@pytest.fixture
def client(make: Maker, files: tuple[ModelFiles, Model]) -> Callable[..., Client]:
    return lambda **fields: Client(make(**fields), files[1])


def some(count: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(KIMI["vocab_size"]), k=count)


@pytest.mark.parametrize("step_tokens", [5, 48])
def test_outputs_are_those_of_transformers(client: Callable[..., Client], step_tokens: int) -> None:
    """Prompts in chunks beside decodes, forks, common beginnings, a preempting lane, aborts, in a small pool."""
    asked = client(blocks=30, slots=9, step_tokens=step_tokens, max_running=5, snapshot_tokens=40)
    draw = random.Random(step_tokens)
    common = some(50, 1)
    for n in range(14):
        ids = common[: draw.choice([0, 20, 50])] + some(draw.randint(1, 40), 2 + n // 2)
        asked.ask(str(n), ids, max_tokens=draw.choice([3, 30]), lane=draw.choice(list(Lane)))
        for _ in range(draw.randrange(4)):
            asked.step()
        if n % 5 == 4:
            asked.core.abort(b"c", str(n))
    asked.finish()
    asked.check()
    assert asked.core.stats().cached_tokens > 0


def test_turns_of_a_session(client: Callable[..., Client]) -> None:
    """Each turn re-sends all before it, and goes on from the last page of the turn before."""
    asked = client()
    history = some(40, 1)
    for turn in range(4):
        asked.ask(str(turn), list(history), max_tokens=21)
        asked.finish()
        known = len(history) + len(asked.tokens[str(turn)]) - 1  # the last token was never computed
        history += asked.tokens[str(turn)] + some(11, 50 + turn)
        if turn < 3:
            asked.ask(f"{turn} again", list(history), max_tokens=1)
            asked.finish()
            assert asked.cached[f"{turn} again"] == known // PAGE * PAGE
    asked.check()


def test_forks_of_one_prompt(client: Callable[..., Client]) -> None:
    asked = client(step_tokens=16)
    for n in range(5):
        asked.ask(str(n), some(70, 1))
    asked.finish()
    asked.check()
    assert sorted(asked.cached.values()) == [0, 64, 64, 64, 64]
    assert asked.core.stats().prefill_tokens == 70 + 4 * 6


def test_preemption_goes_on_from_a_snapshot(client: Callable[..., Client]) -> None:
    asked = client(max_running=1, lane_reserve=(0.0, 0.0))
    asked.ask("batch", some(50, 1), max_tokens=60, lane=Lane.BATCH)
    for _ in range(40):
        asked.step()
    asked.ask("urgent", some(30, 2), lane=Lane.INTERACTIVE)
    asked.finish()
    asked.check()
    stats = asked.core.stats()
    assert stats.preemptions == 1
    assert stats.recomputed_tokens < PAGE


def test_as_many_run_as_there_are_slots(client: Callable[..., Client]) -> None:
    asked = client(slots=2)
    for n in range(6):
        asked.ask(str(n), some(20 + n, n))
    for _ in range(5):
        asked.step()
        assert asked.core.stats().running <= 2
    asked.finish()
    asked.check()


def test_regular_snapshots_lie_on_pages(client: Callable[..., Client]) -> None:
    asked = client(snapshot_tokens=20)
    asked.ask("first", some(90, 1))
    asked.finish()
    asked.ask("parts at 40", some(90, 1)[:40] + some(30, 2))
    asked.finish()
    asked.check()
    assert asked.cached["parts at 40"] == 32


def test_memory_holds_states_and_blocks(make: Maker) -> None:
    ready = make(blocks=10, slots=3).ready
    assert ready.kv_tokens == 10 * PAGE
    with pytest.raises(ModelError, match=r"no block beside 3 states of .* bytes"):
        make(blocks=0, slots=3)
    shared = make(state_slots=None, kv_memory=8 * STATE)
    assert shared.stats().states_free == 4, "half of the memory"
    assert shared.ready.kv_tokens == 4 * STATE // (PAGE * TOKEN) * PAGE
