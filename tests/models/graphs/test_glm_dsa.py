"""GLM-5's graph against transformers, far beyond the number of tokens its indexer chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from parity_rig import LENGTHS, SITUATIONS, Reference, Rig, randomise, save_and_load
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM

from stoker.engine.executor import kv_bytes_per_token
from stoker.models.context import Graph
from stoker.models.graphs.glm_dsa import parse_config
from stoker.models.source import ModelError

GLM: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 7,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 18,
    "n_routed_experts": 6,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 2,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "index_topk": 8,
    "index_head_dim": 20,
    "index_n_heads": 16,  # with few, many tokens score exactly 0, and which of them are chosen is anybody's guess
    "tie_word_embeddings": False,
}
SHARING = {"index_topk_freq": 4, "index_skip_topk_offset": 3}


@pytest.fixture(scope="module", params=[{}, SHARING], ids=["every layer chooses", "choices shared"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Graph]:
    model = GlmMoeDsaForCausalLM(GlmMoeDsaConfig(**{**GLM, **request.param}))
    randomise(model)
    for name, module in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.variance_epsilon = GLM["rms_norm_eps"]
    return save_and_load(model, tmp_path_factory.mktemp("glm_dsa"))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_same_logits_as_transformers(pair: tuple[Reference, Graph], situation: Callable[[Rig], None]) -> None:
    assert max(LENGTHS) > 10 * GLM["index_topk"]
    rig = Rig(*pair, shuffled=True)
    situation(rig)
    rig.check()


def test_only_layers_that_choose_keep_index_keys(pair: tuple[Reference, Graph]) -> None:
    choosing = sum(hasattr(spec, "index") for spec in pair[1].caches)
    assert choosing in (7, 4)
    assert kv_bytes_per_token(pair[1], torch.bfloat16) == 2 * (7 * (16 + 8) + choosing * 20)


def test_which_layers_of_the_published_models_choose() -> None:
    """GLM-5.2: layers 0, 1, 2, 6, 10 ... 74 of 78."""
    config = {**GLM, "num_hidden_layers": 78, "first_k_dense_replace": 3}
    shared = parse_config({**config, **SHARING}, "5.2").indexer_types
    assert [index for index, kind in enumerate(shared) if kind == "full"] == [0, 1, 2, *range(6, 75, 4)]
    assert parse_config(config, "5").indexer_types == ("full",) * 78


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"index_topk_freq": 4}, "index_skip_topk_offset"),
        ({"indexer_types": ["shared"] + ["full"] * 6}, "indexer_types"),
        ({"indexer_types": ["full"] * 6}, "indexer_types"),
        ({"indexer_rope_interleave": False}, "indexer_rope_interleave"),
        ({"index_topk_pattern": "FSSFSSF"}, "index_topk_pattern"),
        ({"layer_types": ["sliding_attention"] * 7}, "layer_types"),
        ({"index_head_dim": 4}, "index_head_dim"),
        ({"index_kpool": 16}, "index_kpool"),
        ({"index_topk": None}, "index_topk"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        parse_config({**GLM, **change}, "somewhere")
