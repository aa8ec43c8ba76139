"""Folders as the makers publish their models, against transformers on the same values dense."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import makers
import pytest
import torch
from dense_reference import reference_model
from parity_rig import CPU, Reference, Rig, chunks, decode, prefix_hits, reference_of
from transformers import (
    DeepseekV3ForCausalLM,
    Glm4ForCausalLM,
    Glm4MoeForCausalLM,
    Glm4MoeLiteForCausalLM,
    GlmMoeDsaForCausalLM,
    KimiLinearForCausalLM,
)

from stoker.engine import capacity
from stoker.models.context import Graph
from stoker.models.info import read_info
from stoker.models.loader import load_graph
from stoker.models.shards import Ranks
from stoker.models.source import ModelFiles

MODELS: dict[str, tuple[Callable[[], makers.Maker], Any]] = {
    "Kimi-K2-Instruct, FP8 blocks": (makers.kimi_k2, DeepseekV3ForCausalLM),
    "Kimi-K2-Thinking, INT4 experts": (makers.kimi_k2_thinking, DeepseekV3ForCausalLM),
    "Kimi-K2.5, INT4 experts": (makers.kimi_k25, DeepseekV3ForCausalLM),
    "Kimi-Linear, INT4 experts": (makers.kimi_linear, KimiLinearForCausalLM),
    "GLM-4.5, FP8 rows": (makers.glm_45, Glm4MoeForCausalLM),
    "GLM-4-9B-0414, BF16": (makers.glm_4_9b, Glm4ForCausalLM),
    "GLM-4.5-Air, BF16": (makers.glm_45_air, Glm4MoeForCausalLM),
    "GLM-4.7-Flash, BF16": (makers.glm_47_flash, Glm4MoeLiteForCausalLM),
    "GLM-5, FP8 blocks": (partial(makers.glm_5, shared=False), GlmMoeDsaForCausalLM),
    "GLM-5.3, FP8 blocks": (makers.glm_5, GlmMoeDsaForCausalLM),
}


@pytest.fixture(scope="module", params=MODELS)
def published(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelFiles, Any]:
    """The maker's folder, and transformers' model of the same values."""
    make, kind = MODELS[request.param]
    root, dense = tmp_path_factory.mktemp("maker"), tmp_path_factory.mktemp("dense")
    model = reference_model(make(), kind, root, dense)
    return ModelFiles(name="maker", root=str(root), gguf=None), model


@pytest.fixture(scope="module")
def pair(published: tuple[ModelFiles, Any]) -> tuple[Reference, Graph]:
    files, model = published
    return reference_of(model), load_graph(files, dtype=torch.float32, device=CPU, progress=lambda stage, part: None)


@pytest.mark.parametrize("situation", [chunks, decode, prefix_hits])
def test_same_logits_as_transformers(pair: tuple[Reference, Graph], situation: Callable[[Rig], None]) -> None:
    rig = Rig(*pair, shuffled=True)
    situation(rig)
    rig.check()


def test_the_check_finds_nothing_wrong(published: tuple[ModelFiles, Any]) -> None:
    report = capacity.check_model(published[0].root, Ranks(), None)
    assert report.ok, report
    assert report.tensors > 30


def test_every_token_that_ends_an_answer_is_known(published: tuple[ModelFiles, Any]) -> None:
    """Kimi's configurations name one of two."""
    root = Path(published[0].root)
    outer = json.loads((root / "config.json").read_text())
    named = {
        *outer.get("text_config", outer)["eos_token_id"],
        *json.loads((root / "generation_config.json").read_text())["eos_token_id"],
    }
    assert len(named) > 1
    assert set(read_info(published[0]).eos_ids) == named
