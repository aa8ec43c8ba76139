"""Constrained output through the real scheduler, executor and a tiny model: valid whatever else goes on."""

from __future__ import annotations

import itertools
import json
import time

import jsonschema
import pytest

from stoker.config import EngineConfig
from stoker.engine.build import build_core
from stoker.engine.core import EngineCore
from stoker.engine.spec import EngineSpec
from stoker.models.info import read_info
from stoker.models.source import ModelFiles
from stoker.models.text.model import TextModel
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, Progress, Reasoning, Refused

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["red", "green", 3]}, "minItems": 1, "maxItems": 4},
        "size": {"type": "integer", "minimum": -9, "maximum": 99},
    },
    "required": ["name", "tags", "size"],
    "additionalProperties": False,
}
GRAMMAR = f"start: j\nj: %json {json.dumps({'x-guidance': {'whitespace_flexible': False}, **SCHEMA})}"
BLOCK_BYTES = 2 * 2 * 16 * 3 * 4 * 16  # k and v, KV heads, head_dim, layers, bytes, tokens
CLIENT = b"client"


def make(files: ModelFiles, blocks: int = 512, **fields: object) -> EngineCore:
    settings = {"device": "cpu", "dtype": "float32", "kv_memory": blocks * BLOCK_BYTES, **fields}
    spec = EngineSpec(
        files=files,
        info=read_info(files),
        config=EngineConfig(**settings),  # pyright: ignore[reportArgumentType]
        endpoint="",
        chain_key="22" * 32,
    )
    return build_core(spec, lambda stage, fraction: None)


class Reader:
    """Submits to a core, runs it, keeps what each request got."""

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.tokens: dict[str, list[int]] = {}
        self.last: dict[str, Progress] = {}
        self.refused: dict[str, Refused] = {}

    def submit(self, request: Generate) -> None:
        self.tokens[request.id] = []
        assert self.core.submit(CLIENT, request) is None

    def step(self) -> None:
        for _, refused in self.core.compiled():
            self.refused[refused.id] = refused
        for progress in (item for news in self.core.step().values() for item in news):
            self.tokens[progress.id] += [token.id for token in progress.tokens]
            self.last[progress.id] = progress

    def finish(self) -> None:
        deadline = time.monotonic() + 60
        while self.core.busy or self.core.compiling:
            assert time.monotonic() < deadline
            self.step()
            if not self.core.busy:
                time.sleep(0.001)


def ask(name: str, prompt: list[int], *, seed: int, **fields: object) -> Generate:
    sampling = SamplingParams(temperature=1.0, max_tokens=160, seed=seed)
    return Generate(id=name, prompt_ids=prompt, sampling=sampling, **fields)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module")
def alone(tiny_llama: ModelFiles) -> dict[int, list[int]]:
    """Seed -> what each constrained request generates with the engine to itself."""
    found: dict[int, list[int]] = {}
    for seed in range(8):
        reader = Reader(make(tiny_llama))
        reader.submit(ask("a", prompt(seed), seed=seed, grammar=GRAMMAR))
        reader.finish()
        found[seed] = reader.tokens["a"]
    return found


def prompt(seed: int) -> list[int]:
    return [(7 * i + seed // 4) % 400 for i in range(70)]  # four and four have one prompt


@pytest.mark.parametrize(
    ("chunked", "tight", "warm"),
    [which for which in itertools.product((False, True), repeat=3) if sum(which) in (0, 2, 3)],
)
def test_grammar_with_chunks_preemption_and_prefix_hits(
    tiny_llama: ModelFiles,
    tiny_text: TextModel,
    alone: dict[int, list[int]],
    chunked: bool,
    tight: bool,
    warm: bool,
) -> None:
    """The outputs are complete, valid, and those of an engine with nothing else to do."""
    core = make(tiny_llama, blocks=24 if tight else 512, step_tokens=8 if chunked else 256)
    reader = Reader(core)
    if warm:
        for seed in (0, 4):
            reader.submit(ask(f"warm {seed}", [*prompt(seed), 1], seed=1))
        reader.finish()
    for seed in alone:
        reader.submit(ask(f"free {seed}", prompt(seed), seed=seed + 100))
        reader.submit(ask(f"json {seed}", prompt(seed), seed=seed, grammar=GRAMMAR))
    reader.finish()
    stats = core.stats()
    assert bool(stats.preemptions) == tight
    same = 0
    for seed, expected in alone.items():
        tokens, last = reader.tokens[f"json {seed}"], reader.last[f"json {seed}"]
        assert last.finish == "stop"
        jsonschema.validate(json.loads(tiny_text.decode(tokens)), SCHEMA)
        assert last.cached or not warm
        same += tokens == expected
        free = reader.last[f"free {seed}"]
        assert free.finish in ("stop", "length")
    assert same >= len(alone) - 1, "a near tie may fall otherwise in another batch, no more"


def test_reasoning_comes_first_and_its_budget_is_kept(tiny_llama: ModelFiles, tiny_text: TextModel) -> None:
    reader = Reader(make(tiny_llama))
    end = tuple(tiny_text.encode("</think>"))
    for seed in range(6):
        reasoning = Reasoning(format="hermes", start="reasoning", budget=10, end=end)
        reader.submit(ask(str(seed), prompt(seed), seed=seed, grammar=GRAMMAR, reasoning=reasoning))
    reader.finish()
    for tokens in reader.tokens.values():
        at = tokens.index(end[0])
        assert at <= 10
        jsonschema.validate(json.loads(tiny_text.decode(tokens[at + 1 :])), SCHEMA)


def test_a_wrong_grammar_fails_its_request_and_no_other(tiny_llama: ModelFiles, tiny_text: TextModel) -> None:
    reader = Reader(make(tiny_llama))
    reader.submit(ask("good", prompt(0), seed=0, grammar=GRAMMAR))
    reader.submit(ask("syntax", prompt(0), seed=0, grammar="start: ("))
    reader.submit(ask("empty", prompt(0), seed=0, grammar="start: a\na: a"))
    reader.submit(ask("format", prompt(0), seed=0, grammar='start: j\nj: %json {"type": "strnig"}'))
    reader.finish()
    assert {name: refused.code for name, refused in reader.refused.items()} == {
        "syntax": "invalid_grammar",
        "format": "invalid_grammar",
    }
    assert reader.last["empty"].finish == "error"
    assert reader.last["good"].finish == "stop"
    jsonschema.validate(json.loads(tiny_text.decode(reader.tokens["good"])), SCHEMA)


def test_a_request_may_leave_while_its_grammar_is_compiled(tiny_llama: ModelFiles) -> None:
    core = make(tiny_llama)
    reader = Reader(core)
    reader.submit(ask("gone", prompt(0), seed=0, grammar="start: ("))
    core.abort(CLIENT, "gone")
    reader.submit(ask("here", prompt(0), seed=0, grammar=GRAMMAR))
    reader.finish()
    assert not reader.refused
    assert reader.last["here"].finish == "stop"
    assert not core.busy


def test_a_waiting_grammar_holds_up_nobody(tiny_llama: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others run to their end while one grammar takes its time, and the engine rests when only that is left."""
    core = make(tiny_llama)
    ready: list[tuple[str, str | None]] = []
    monkeypatch.setattr(core._compiler, "done", lambda: [ready.pop()] if ready else [])  # pyright: ignore
    reader = Reader(core)
    reader.submit(ask("slow", prompt(0), seed=0, grammar=GRAMMAR))
    reader.submit(ask("free", prompt(0), seed=0))
    for _ in range(400):
        reader.step()
    assert reader.last["free"].finish is not None
    assert not core.busy
    assert "slow" not in reader.last
    ready.append(("0", None))
    reader.step()
    while core.busy:
        reader.step()
    assert reader.last["slow"].finish == "stop"
