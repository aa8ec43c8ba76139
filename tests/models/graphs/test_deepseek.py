"""Latent attention with experts against transformers: Kimi K2, K2.5's language model, GLM-4.7-Flash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity_rig import CPU, SITUATIONS, Reference, Rig, randomise, save_and_load
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3ForCausalLM, Glm4MoeLiteForCausalLM

from stoker.engine.executor import kv_bytes_per_token
from stoker.models.context import Graph
from stoker.models.graphs.deepseek import parse_config
from stoker.models.loader import load_graph
from stoker.models.source import ModelError, ModelFiles

YARN = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
KIMI: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 3,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.827,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 128,
    "rope_parameters": YARN,
    "tie_word_embeddings": False,
    "num_mtp_layers": 0,
}
CASES: dict[str, dict[str, Any]] = {
    "yarn, beta_fast 32": {},
    "yarn, beta_fast 1": {"rope_parameters": {**YARN, "beta_fast": 1.0}},
    "groups, no query latent, other mscales, half-split": {
        "n_group": 4,
        "topk_group": 2,
        "q_lora_rank": None,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3},
        "rope_interleave": False,
    },
    "biases, no scaling": {
        "attention_bias": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "v_head_dim": 24,
    },
}
FLASH: dict[str, Any] = {
    "v_head_dim": 24,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 1.8,
    "first_k_dense_replace": None,
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}


def reference_model(kind: Any = DeepseekV3ForCausalLM, **changes: Any) -> Any:
    """Its latent norms take the configuration's epsilon, and latents are small enough for that to matter."""
    config = kind.config_class(**{**KIMI, **changes})
    model = kind(config)
    randomise(model)
    for name, module in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.variance_epsilon = config.rms_norm_eps
        elif name.endswith(("q_a_proj", "kv_a_proj_with_mqa")):
            module.weight.data *= 0.01
    return model


@pytest.fixture(scope="module", params=[*CASES, "GLM-4.7-Flash"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Graph]:
    case = request.param
    model = reference_model(**CASES[case]) if case in CASES else reference_model(Glm4MoeLiteForCausalLM, **FLASH)
    return save_and_load(model, tmp_path_factory.mktemp("deepseek"))


@pytest.mark.parametrize("situation", SITUATIONS)
def test_same_logits_as_transformers(pair: tuple[Reference, Graph], situation: Callable[[Rig], None]) -> None:
    rig = Rig(*pair, shuffled=True)
    situation(rig)
    rig.check()


def test_the_cache_holds_one_latent_and_one_rotary_key(pair: tuple[Reference, Graph]) -> None:
    assert kv_bytes_per_token(pair[1], torch.bfloat16) == 3 * (16 + 8) * 2


@pytest.fixture
def stored(tmp_path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a Kimi checkpoint; what a test makes of them is written by `load`."""
    reference_model().save_pretrained(tmp_path)
    return load_file(tmp_path / "model.safetensors")


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Graph]:
    def build(tensors: dict[str, torch.Tensor], change: Callable[[dict[str, Any]], dict[str, Any]] = dict) -> Graph:
        save_file(tensors, tmp_path / "model.safetensors")
        path = tmp_path / "config.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))
        files = ModelFiles(name="changed", root=str(tmp_path), gguf=None)
        return load_graph(files, dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)

    return build


def test_layers_that_predict_ahead_are_left_out(stored: dict[str, torch.Tensor], load: Callable[..., Graph]) -> None:
    stored["model.layers.3.eh_proj.weight"] = torch.zeros(64, 128)
    stored["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
    with pytest.raises(ModelError, match=r"model\.layers\.3\.eh_proj"):
        load(stored)
    graph = load(stored, lambda config: {**config, "num_nextn_predict_layers": 1})
    assert len(graph.caches) == 3
    stored["model.layers.4.eh_proj.weight"] = torch.zeros(64, 128)
    with pytest.raises(ModelError, match=r"model\.layers\.4\.eh_proj"):
        load(stored)


def test_the_makers_spelling_of_the_configuration() -> None:
    """K2-Instruct's keys; the layers' kinds and the rotary settings are written another way by transformers."""
    old = {key: value for key, value in KIMI.items() if key not in ("rope_parameters", "num_mtp_layers")}
    scaling = {**YARN, "type": "yarn"}
    theta = scaling.pop("rope_theta")
    scaling.pop("rope_type")
    config = {
        **old,
        "model_type": "kimi_k2",
        "rope_theta": theta,
        "rope_scaling": scaling,
        "moe_layer_freq": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
        "ep_size": 1,
        "pretraining_tp": 1,
        "num_nextn_predict_layers": 0,
        "hidden_act": "silu",
    }
    parsed = parse_config(config, "maker")
    kinds = ["dense", "sparse", "sparse"]
    same = {**KIMI, "mlp_layer_types": kinds, "first_k_dense_replace": None, "num_nextn_predict_layers": 0}
    assert parsed == parse_config(same, "library")
    assert parsed.mlp_layer_types == tuple(kinds)


def test_softmax_scale_of_the_published_models() -> None:
    """0.1309 for K2-Instruct, 0.1447 for K2.5 (192^-0.5 times the square of 0.1 ln factor + 1)."""
    sizes = {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64}
    for factor, scale in ((32.0, 0.1309), (64.0, 0.1447)):
        config = parse_config({**KIMI, **sizes, "rope_parameters": {**YARN, "factor": factor}}, "published")
        assert config.attention.scale == pytest.approx(scale, abs=5e-5)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"scoring_func": "softmax"}, "scoring_func"),
        ({"topk_method": "greedy"}, "topk_method"),
        ({"moe_layer_freq": 2}, "moe_layer_freq"),
        ({"num_key_value_heads": 2}, "num_key_value_heads"),
        ({"index_topk": 2048}, "index_topk"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"rope_parameters": {**YARN, "beta_medium": 3}}, "beta_medium"),
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        ({"n_group": 3}, "groups"),
        ({"num_experts_per_tok": 9}, "9 of 8 experts"),
        ({"n_group": 8, "topk_group": 4}, "groups of one expert"),
        ({"mlp_layer_types": ["dense", "sparse"]}, "mlp_layer_types"),
        ({"mlp_layer_types": ["dense", "sparse", "latent"]}, "mlp_layer_types"),
        ({"kv_lora_rank": None}, "kv_lora_rank"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        parse_config({**KIMI, **change}, "somewhere")
