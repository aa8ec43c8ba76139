"""Qwen3's graphs, dense and with experts, against transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from parity_rig import SITUATIONS, Reference, Rig, randomise, save_and_load
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from stoker.models.context import Graph
from stoker.models.graphs.qwen3 import parse_config
from stoker.models.source import ModelError

DENSE: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "max_position_embeddings": 128,
}
SPARSE: dict[str, Any] = {
    **DENSE,
    "moe_intermediate_size": 20,
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "norm_topk_prob": True,
}
YARN = {"rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "original_max_position_embeddings": 32}
CASES: dict[str, Callable[[], Any]] = {
    "dense, tied": lambda: Qwen3ForCausalLM(Qwen3Config(**DENSE, tie_word_embeddings=True)),
    "dense, biases, yarn": lambda: Qwen3ForCausalLM(
        Qwen3Config(**{**DENSE, "rope_parameters": YARN}, attention_bias=True)
    ),
    "experts": lambda: Qwen3MoeForCausalLM(Qwen3MoeConfig(**SPARSE)),
    "experts in some layers, shares not normalised": lambda: Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            **{**SPARSE, "num_hidden_layers": 4, "norm_topk_prob": False}, decoder_sparse_step=2, mlp_only_layers=[1]
        )
    ),
}


@pytest.fixture(scope="module", params=CASES)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Graph]:
    model = CASES[request.param]()
    randomise(model)
    return save_and_load(model, tmp_path_factory.mktemp("qwen3"))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_same_logits_as_transformers(pair: tuple[Reference, Graph], situation: Callable[[Rig], None]) -> None:
    rig = Rig(*pair, shuffled=True)
    situation(rig)
    rig.check()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"use_sliding_window": True}, "use_sliding_window"),
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "layer_types"),
        ({"num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"num_experts": None}, "num_experts"),
        ({"head_dim": 15}, "even"),
        ({"shared_expert_intermediate_size": 40}, "shared_expert_intermediate_size"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        parse_config({"model_type": "qwen3_moe", **SPARSE, **change}, "somewhere")
