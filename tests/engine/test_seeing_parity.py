"""Images end to end against transformers: whole, in chunks with borders inside images, after prefix hits, preempted,
through the executor; and greedy answers through scheduler, executor and a small memory for features."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from parity_rig import CPU, SITUATIONS, Reference, Rig
from vision_model import PAD, patches, reference_model, save

from stoker.config import EngineConfig
from stoker.engine.build import build_core
from stoker.engine.core import EngineCore
from stoker.engine.images import ImageLimits, Images
from stoker.engine.spec import EngineSpec
from stoker.models.info import ModelInfo
from stoker.models.loader import load_graph
from stoker.models.source import ModelFiles
from stoker.types.lane import Lane
from stoker.types.plan import Encode, ImageAt, SequenceStart, StepPlan
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, ImageSpan, Progress, Refused

SIZES = [(1, 1), (2, 3), (3, 2), (5, 1), (4, 4)]  # of images: rows and columns of tokens
VOCAB = 97
# Of each sequence: its length, and which images stand where.
SEQUENCES: list[tuple[int, list[tuple[int, int]]]] = [
    (4, [(1, 0)]),
    (24, [(0, 1), (9, 2), (15, 1)]),
    (41, [(3, 4), (19, 4), (36, 3)]),
    (50, [(10, 2), (16, 3), (40, 0)]),
    (30, []),
]


def pixels(image: int) -> torch.Tensor:
    rows, columns = SIZES[image]
    draw = torch.Generator().manual_seed(image)
    return torch.randint(0, 256, (28 * rows, 28 * columns, 3), dtype=torch.uint8, generator=draw)


def size(image: int) -> int:
    return SIZES[image][0] * SIZES[image][1]


def sequence(which: int) -> list[int]:
    length, images = SEQUENCES[which]
    draw = random.Random(which)
    ids = [draw.choice([token for token in range(VOCAB - 1) if token != PAD]) for _ in range(length)]
    for start, image in images:
        ids[start : start + size(image)] = [PAD] * size(image)
    return ids


def spans(which: int) -> list[ImageSpan]:
    return [
        ImageSpan(start, size(image), 28 * SIZES[image][0], 28 * SIZES[image][1], bytes([image]) * 16)
        for start, image in SEQUENCES[which][1]
    ]


@torch.no_grad()
def reference_logits(model: Any, ids: list[int], images: list[int]) -> torch.Tensor:
    if not images:
        return model(torch.tensor([ids])).logits[0]
    values, grids = zip(*(patches(pixels(image)) for image in images), strict=True)
    return model(torch.tensor([ids]), pixel_values=torch.cat(values), image_grid_thw=torch.cat(grids)).logits[0]


@pytest.fixture(scope="module")
def model() -> Any:
    return reference_model()


@pytest.fixture(scope="module")
def folder(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("seeing")
    save(model, path)
    return path


@pytest.fixture(scope="module")
def reference(model: Any) -> Reference:
    sequences = [sequence(which) for which in range(len(SEQUENCES))]
    logits = [
        reference_logits(model, ids, [image for _, image in SEQUENCES[which][1]]) for which, ids in enumerate(sequences)
    ]
    return Reference(sequences, [1] * len(sequences), logits, 1e-4)


class SeeingRig(Rig):
    """The images are encoded in a step of their own, before everything else."""

    def __post_init__(self) -> None:
        super().__post_init__()
        encode = [
            Encode(image, 28 * SIZES[image][0], 28 * SIZES[image][1], pixels(image).numpy().tobytes())
            for image in range(len(SIZES))
        ]
        self.executor.execute(StepPlan(step=0, encode=encode))

    def start(self, seq: int, index: int, *args: Any, **more: Any) -> SequenceStart:
        images = [ImageAt(image, start, size(image)) for start, image in SEQUENCES[index][1]]
        return msgspec.structs.replace(super().start(seq, index, *args, **more), images=images)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_same_logits_as_transformers(reference: Reference, folder: Path, situation: Callable[[Rig], None]) -> None:
    files = ModelFiles(name="tiny", root=str(folder), gguf=None)
    graph = load_graph(files, dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)
    rig = SeeingRig(reference, graph, shuffled=True)
    situation(rig)
    rig.check()


def test_images_change_what_comes_out(model: Any, reference: Reference) -> None:
    """So that the comparison above compares something."""
    ids = reference.sequences[1]
    other = reference_logits(model, ids, [2, 1, 2])  # each in the other's place
    assert (other[-1] - reference.logits[1][-1]).abs().max() > 0.1


class Client:
    """Submits to a core, steps it, answers what it asks for."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, Progress] = {}
        self.asked: list[int] = []

    def ask(self, name: str, which: int, lane: Lane = Lane.STANDARD) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
        request = Generate(id=name, prompt_ids=sequence(which), sampling=sampling, images=spans(which), lane=lane)
        assert self.core.submit(b"c", request) is None
        self.tokens[name] = []

    def run(self, steps: int | None = None) -> None:
        for _ in range(steps or 1000):
            for progress in self.core.step().get(b"c", []):
                self.tokens[progress.id] += [token.id for token in progress.tokens]
                self.last[progress.id] = progress
            for digest in self.core.wanted().get(b"c", []):
                self.asked.append(digest[0])
                assert self.core.supply(b"c", digest, pixels(digest[0]).numpy().tobytes()) == []
            if not self.core.busy and self.core.stats().running == 0:
                return
        assert steps is not None, "it does not end"


def expected(model: Any, which: int) -> list[int]:
    """Greedy, until the first near tie."""
    ids, images = sequence(which), [image for _, image in SEQUENCES[which][1]]
    found: list[int] = []
    for _ in range(6):
        best = reference_logits(model, ids + found, images)[-1].topk(2)
        if best.values[0] - best.values[1] < 0.05:
            break
        found.append(int(best.indices[0]))
    return found


def core_of(folder: Path, blocks: int = 200, **config: object) -> EngineCore:
    info = ModelInfo(name="tiny", architecture="kimi_k2", context=256, vocab_size=VOCAB, eos_ids=(96,), fingerprint="f")
    settings = {"device": "cpu", "dtype": "float32", "kv_memory": blocks * 4 * 2 * 24 * 4, "block_size": 4, **config}
    spec = EngineSpec(
        files=ModelFiles(name="tiny", root=str(folder), gguf=None),
        info=info,
        config=EngineConfig(**settings),  # type: ignore[arg-type]
        endpoint="",
        chain_key="22" * 32,
    )
    return build_core(spec, lambda stage, fraction: None)


@pytest.mark.parametrize("bounds", [{}, {"step_tokens": 5}, {"blocks": 18, "step_tokens": 16}], ids=str)
def test_greedy_answers(model: Any, folder: Path, bounds: dict[str, int]) -> None:
    core = core_of(folder, **bounds)
    core._scheduler.images = Images(ImageLimits(token_bytes=256, memory=20 * 256, step_tokens=16))
    client = Client(core)
    client.ask("r3", 3, Lane.BATCH)
    client.run(steps=5)
    for which in (0, 1, 2, 4):
        client.ask(f"r{which}", which, Lane.INTERACTIVE)
    client.run()
    wanted = [expected(model, which) for which in range(len(SEQUENCES))]
    for which, want in enumerate(wanted):
        assert client.tokens[f"r{which}"][: len(want)] == want
    assert sum(map(len, wanted)) >= 12  # most of what there is, in spite of near ties
    assert (core.stats().preemptions > 0) == ("blocks" in bounds)
    assert core.stats().image_tokens >= sum(size(image) for image in range(len(SIZES)))


def test_history_costs_nothing_and_another_image_hits_nothing(folder: Path) -> None:
    client = Client(core_of(folder))
    client.ask("first", 3)
    client.run()
    assert client.asked == [2, 3, 0]
    client.ask("again", 3)
    client.run()
    assert client.asked == [2, 3, 0]
    assert client.last["again"].cached == 48
    assert client.tokens["again"] == client.tokens["first"]
    other = [*spans(3)[:2], ImageSpan(40, 1, 28, 28, b"\4" * 16)]
    sampling = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    client.core.submit(b"c", Generate(id="other", prompt_ids=sequence(3), sampling=sampling, images=other))
    client.core.step()
    assert client.core.wanted() == {b"c": [b"\4" * 16]}
    refused = client.core.supply(b"c", b"\4" * 16, b"")
    assert [(r.id, r.code) for r in refused] == [("other", "image_lost")]
    assert isinstance(refused[0], Refused)
    assert client.core.stats().running == 0
