"""Graphs in bfloat16, where weights take other layouts: logits stay near those of float32; and on no device at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity_rig import CPU, Rig, decode, randomise, reference_of
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GlmMoeDsaConfig,
    GlmMoeDsaForCausalLM,
    KimiLinearConfig,
    KimiLinearForCausalLM,
)

from stoker.models.loader import build_graph, load_graph
from stoker.models.source import ModelFiles
from stoker.models.weights.safetensors import SafetensorsSource

SHAPES: dict[str, Any] = {
    "vocab_size": 131,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "num_experts_per_tok": 4,  # all of them: rounding may change a choice, and the logits by more than rounding
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "tie_word_embeddings": False,
}
LATENT = {"q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
INDEX = {"index_topk": 128, "index_head_dim": 16, "index_n_heads": 2}  # chooses all, for the same reason
MODELS: dict[str, Callable[[], Any]] = {
    "deepseek": lambda: DeepseekV3ForCausalLM(
        DeepseekV3Config(**SHAPES, **LATENT, rope_theta=1000.0, num_mtp_layers=0)
    ),
    "glm4_moe": lambda: Glm4MoeForCausalLM(
        Glm4MoeConfig(**SHAPES, head_dim=16, use_qk_norm=True, rope_theta=1000.0, num_mtp_layers=0)
    ),
    "kimi_linear": lambda: KimiLinearForCausalLM(
        KimiLinearConfig(
            **{key: value for key, value in (SHAPES | LATENT).items() if key != "n_routed_experts"},
            num_experts=4,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            linear_attn_config={
                "head_dim": 16,
                "num_heads": 3,
                "short_conv_kernel_size": 4,
                "kda_layers": [1],
                "full_attn_layers": [2],
            },
        )
    ),
    "glm_dsa": lambda: GlmMoeDsaForCausalLM(GlmMoeDsaConfig(**SHAPES, **LATENT, **INDEX, rope_theta=1000.0)),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    model = MODELS[request.param]()
    randomise(model)
    model.save_pretrained(tmp_path)
    return model


def test_bfloat16_stays_close(model: Any, tmp_path: Path) -> None:
    files = ModelFiles(name="tiny", root=str(tmp_path), gguf=None)
    graph = load_graph(files, dtype=torch.bfloat16, device=CPU, progress=lambda stage, fraction: None)
    rig = Rig(reference_of(model), graph, shuffled=True, dtype=torch.bfloat16)
    decode(rig)
    for index, wanted in enumerate(rig.reference.logits):
        found = torch.stack([rig.logits[index][position] for position in range(len(wanted))])
        assert (found - wanted).square().mean().sqrt() < 0.04 * wanted.std()


def test_graphs_are_built_from_shapes_alone(model: Any, tmp_path: Path) -> None:
    class Shapes(SafetensorsSource):
        def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
            return torch.empty(self.shape(name), dtype=dtype, device="meta")

    config = json.loads((tmp_path / "config.json").read_text())
    graph = build_graph(
        config,
        Shapes(tmp_path),
        dtype=torch.bfloat16,
        device=torch.device("meta"),
        progress=lambda stage, fraction: None,
    )
    assert len(graph.caches) == 2
    assert graph.logits(torch.empty(3, 64, dtype=torch.bfloat16, device="meta")).shape == (3, 131)
