"""A request whose first tokens were generated elsewhere goes on as if nothing had happened: the same output as an
undisturbed run, whatever the sampler, the grammar or the reasoning had to remember."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stoker.config import EngineConfig
from stoker.engine.build import build_core
from stoker.engine.core import EngineCore
from stoker.engine.spec import EngineSpec
from stoker.models.info import read_info
from stoker.models.source import ModelFiles
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, Progress, Reasoning, SampledToken

CLIENT = b"client"
PROMPT = [random.Random(3).randrange(400) for _ in range(70)]
SCHEMA = {"type": "array", "items": {"enum": ["red", "green", 3, {"a": None}]}, "minItems": 5, "maxItems": 9}
GRAMMAR = f"start: j\nj: %json {json.dumps({'x-guidance': {'whitespace_flexible': False}, **SCHEMA})}"
CASES = {
    "greedy": Generate(
        id="", prompt_ids=PROMPT, sampling=SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
    ),
    "seeded": Generate(id="", prompt_ids=PROMPT, sampling=SamplingParams(seed=7, max_tokens=40, ignore_eos=True)),
    "penalties": Generate(
        id="",
        prompt_ids=PROMPT,
        sampling=SamplingParams(
            seed=8, max_tokens=40, presence_penalty=1.5, frequency_penalty=0.7, repetition_penalty=1.3, ignore_eos=True
        ),
    ),
    "min_tokens": Generate(
        id="", prompt_ids=PROMPT, sampling=SamplingParams(seed=9, max_tokens=40, min_tokens=30, temperature=1.8)
    ),
    "logprobs": Generate(
        id="", prompt_ids=PROMPT, sampling=SamplingParams(seed=1, max_tokens=24, logprobs=3, ignore_eos=True)
    ),
    "grammar": Generate(id="", prompt_ids=PROMPT, sampling=SamplingParams(seed=5, max_tokens=120), grammar=GRAMMAR),
    "reasoning": Generate(
        id="",
        prompt_ids=PROMPT,
        sampling=SamplingParams(seed=6, max_tokens=120),
        grammar=GRAMMAR,
        reasoning=Reasoning(format="hermes", start="reasoning", budget=20, end=(0,)),
    ),
}


@pytest.fixture(scope="module")
def spec(tiny_llama: ModelFiles) -> EngineSpec:
    config = EngineConfig(device="cpu", dtype="float32", threads=1, kv_memory=2 << 20)
    return EngineSpec(files=tiny_llama, info=read_info(tiny_llama), config=config, endpoint="", chain_key="22" * 32)


@pytest.fixture(scope="module")
def cores(spec: EngineSpec) -> tuple[EngineCore, EngineCore]:
    """The engine that is lost and the one that goes on: they share nothing."""
    return build_core(spec, lambda stage, fraction: None), build_core(spec, lambda stage, fraction: None)


def mark_id(files: ModelFiles, mark: str) -> int:
    tokenizer = json.loads((Path(files.root) / "tokenizer.json").read_text(encoding="utf-8"))
    return next(token["id"] for token in tokenizer["added_tokens"] if token["content"] == mark)


def run(core: EngineCore, request: Generate) -> tuple[list[SampledToken], Progress]:
    assert core.submit(CLIENT, request) is None
    tokens: list[SampledToken] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert not core.compiled()
        for progress in (item for news in core.step().values() for item in news):
            tokens += progress.tokens
            if progress.finish is not None:
                return tokens, progress
    raise AssertionError("it does not end")


@pytest.mark.parametrize("name", CASES)
def test_it_goes_on_as_if_nothing_had_happened(
    cores: tuple[EngineCore, EngineCore], tiny_llama: ModelFiles, name: str
) -> None:
    request = CASES[name]
    if request.reasoning is not None:
        reasoning = msgspec.structs.replace(request.reasoning, end=(mark_id(tiny_llama, "</think>"),))
        request = msgspec.structs.replace(request, reasoning=reasoning)
    first, second = cores
    whole, last = run(first, msgspec.structs.replace(request, id="whole"))
    assert len(whole) > 12
    for at in sorted({1, 2, len(whole) // 3, len(whole) // 2, 2 * len(whole) // 3, len(whole) - 1}):
        given = [token.id for token in whole[:at]]
        domain = f"{name}{at}"  # nothing of it is cached
        resumed = msgspec.structs.replace(request, id=domain, output_ids=given, domain=domain)
        rest, end = run(second, resumed)
        assert [token.id for token in rest] == [token.id for token in whole[at:]]
        assert (end.finish, end.output, end.cached) == (last.finish, last.output, 0)
        for new, old in zip(rest, whole[at:], strict=True):
            assert new.logprob == pytest.approx(old.logprob, abs=1e-4)
            assert [index for index, _ in new.top] == [index for index, _ in old.top]
    again = msgspec.structs.replace(request, id="again", output_ids=given, domain=domain)
    _, end = run(second, again)
    assert end.cached == (len(PROMPT) + len(given) - 1) // 16 * 16, "what was given may come from the cache too"


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"output_ids": [1] * 40}, "invalid_max_tokens"),
        ({"output_ids": [1] * 960, "sampling": SamplingParams()}, "context_length_exceeded"),
        ({"output_ids": [1, 100_000]}, "invalid_token_id"),
        ({"output_ids": [-1]}, "invalid_token_id"),
    ],
)
def test_what_cannot_be_continued_is_refused(
    cores: tuple[EngineCore, EngineCore], fields: dict[str, Any], code: str
) -> None:
    refused = cores[0].submit(CLIENT, msgspec.structs.replace(CASES["greedy"], id="no", **fields))
    assert refused is not None
    assert refused.code == code
