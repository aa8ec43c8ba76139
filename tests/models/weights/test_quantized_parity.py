"""Kimi-shaped models as their makers quantise them, against transformers with the same values dense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity_rig import CPU, Reference, Rig, chunks, decode, prefix_hits, randomise, reference_of
from quantisers import Quantiser, compressed_tensors, float8_blocks, float8_rows, int4_groups, mxfp4
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from stoker.models.context import Graph
from stoker.models.loader import load_graph
from stoker.models.source import ModelFiles

SHAPES: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 80, "moe_intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.827, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "tie_word_embeddings": False,
}  # fmt: skip
BLOCK = (32, 48)
DYNAMIC = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}
ROWS = {"num_bits": 8, "type": "float", "strategy": "channel", "group_size": None}
KINDS: dict[str, tuple[Quantiser, str, dict[str, Any]]] = {
    "fp8": (float8_blocks(BLOCK), "_proj", {"quant_method": "fp8", "weight_block_size": list(BLOCK)}),
    "fp8 rows": (float8_rows, "_proj", compressed_tensors("float-quantized", DYNAMIC, **ROWS)),
    "int4": (int4_groups, ".experts.", compressed_tensors("pack-quantized")),
    "mxfp4": (mxfp4, ".experts.", compressed_tensors("mxfp4-pack-quantized", type="float")),
}


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Reference, Graph]:
    """What transformers says with the values dense, and our graph of a quantised checkpoint, laid out as K2.5's."""
    quantise, which, quantization = KINDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**SHAPES))
    randomise(model)
    model.save_pretrained(folder)
    dense = load_file(folder / "model.safetensors")
    stored = dict(dense)
    for name in [name for name in dense if which in name and name.endswith(".weight")]:
        parts, values = quantise(name.removesuffix(".weight"), dense[name])
        assert (values - dense[name]).abs().max() < 0.3 * dense[name].abs().max()
        del stored[name]
        stored |= parts
        dense[name] = values
    assert len(stored) > len(dense)
    save_file(dense, folder / "model.safetensors", metadata={"format": "pt"})
    reference = reference_of(DeepseekV3ForCausalLM.from_pretrained(folder))
    root = folder / "quantised"
    root.mkdir()
    save_file({f"language_model.{name}": tensor for name, tensor in stored.items()}, root / "model.safetensors")
    text = json.loads((folder / "config.json").read_text()) | {"model_type": "kimi_k2"}
    text["quantization_config"] = quantization
    (root / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": text}))
    return reference, _load(root)


def _load(root: Path) -> Graph:
    files = ModelFiles(name="tiny", root=str(root), gguf=None)
    return load_graph(files, dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)


@pytest.mark.parametrize("situation", [chunks, decode, prefix_hits])
def test_same_logits_as_transformers(pair: tuple[Reference, Graph], situation: Callable[[Rig], None]) -> None:
    rig = Rig(*pair, shuffled=True)
    situation(rig)
    rig.check()
