"""GLM-4.5's graph against transformers, in the variants that were published, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from parity_rig import SITUATIONS, Reference, Rig, randomise, save_and_load
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM

from stoker.models.context import Graph
from stoker.models.graphs.glm4_moe import parse_config
from stoker.models.source import ModelError

GLM: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "moe_intermediate_size": 20,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "first_k_dense_replace": 1,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0, "partial_rotary_factor": 0.5},
    "attention_bias": True,
    "use_qk_norm": True,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "num_mtp_layers": 0,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, dict[str, Any]] = {
    "4.5: norms on queries and keys": {},
    "Air: none, other scaling": {"use_qk_norm": False, "routed_scaling_factor": 1.0},
    "no biases, groups, yarn, tied": {
        "attention_bias": False,
        "n_group": 2,
        "topk_group": 1,
        "rope_parameters": {**YARN, "partial_rotary_factor": 0.75},
        "tie_word_embeddings": True,
    },
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Graph]:
    model = Glm4MoeForCausalLM(Glm4MoeConfig(**{**GLM, **CASES[request.param]}))
    randomise(model)
    return save_and_load(model, tmp_path_factory.mktemp("glm4_moe"))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_same_logits_as_transformers(pair: tuple[Reference, Graph], situation: Callable[[Rig], None]) -> None:
    rig = Rig(*pair, shuffled=True)
    situation(rig)
    rig.check()


def test_the_makers_spelling_of_the_configuration() -> None:
    """GLM-4.5's keys; half of each head turns unless the configuration says otherwise."""
    old = {key: value for key, value in GLM.items() if key not in ("rope_parameters", "num_mtp_layers")}
    maker = {**old, "rope_theta": 1000.0, "rope_scaling": None, "num_nextn_predict_layers": 0}
    assert parse_config(maker, "maker") == parse_config(GLM, "library")
    assert parse_config(maker, "maker").rotary == 8
    assert parse_config({**maker, "partial_rotary_factor": 1.0}, "maker").rotary == 16


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"num_key_value_heads": 4}, "6 heads"),
        ({"partial_rotary_factor": 0.2, "rope_parameters": {"rope_theta": 1.0}}, "3 of them turned"),
        ({"n_group": 3}, "groups"),
        ({"kv_lora_rank": 512}, "kv_lora_rank"),
        ({"rope_parameters": {"rope_type": "mrope", "rope_theta": 1.0}}, "mrope"),
        ({"rope_parameters": {}}, "rope_theta"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        parse_config({**GLM, **change}, "somewhere")
