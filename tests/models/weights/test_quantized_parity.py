"""Kimi-shaped models as their makers quantise them, against transformers with the same values dense."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity_rig import CPU, Reference, Rig, chunks, decode, prefix_hits, randomise, reference_of
from safetensors.torch import load_file, save_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from stoker.models.context import Graph
from stoker.models.loader import load_graph
from stoker.models.source import ModelFiles

Tensors = dict[str, torch.Tensor]
SHAPES: dict[str, Any] = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 80, "moe_intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8, "v_head_dim": 10, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 2.827, "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}, "tie_word_embeddings": False,
}  # fmt: skip
BLOCK = (32, 48)
_INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}


def _compressed(style: str, **weights: object) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": _INT4 | weights}}
    return {"quant_method": "compressed-tensors", "format": style, "config_groups": groups, "ignore": ["lm_head"]}


def _fp8(name: str, matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """One scale per block, block by block."""
    rows, columns = matrix.shape
    numbers, values = torch.empty_like(matrix, dtype=torch.float8_e4m3fn), torch.empty_like(matrix)
    scale = torch.empty(-(-rows // BLOCK[0]), -(-columns // BLOCK[1]))
    for i in range(scale.shape[0]):
        for j in range(scale.shape[1]):
            area = slice(i * BLOCK[0], (i + 1) * BLOCK[0]), slice(j * BLOCK[1], (j + 1) * BLOCK[1])
            scale[i, j] = matrix[area].abs().max() / 448
            numbers[area] = (matrix[area] / scale[i, j]).to(torch.float8_e4m3fn)
            values[area] = numbers[area].float() * scale[i, j]
    return {f"{name}.weight": numbers, f"{name}.weight_scale_inv": scale}, values


def _int4(name: str, matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    groups = matrix.view(len(matrix), -1, 32)
    scale = (groups.abs().amax(-1) / 7).bfloat16()
    codes = (groups / scale.float()[..., None]).round().clamp(-8, 7)
    eights = (codes.long() + 8).view(len(matrix), -1, 8)
    words = sum(eights[..., place] << 4 * place for place in range(8))
    assert isinstance(words, torch.Tensor)
    packed = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    stored = {".weight_packed": packed, ".weight_scale": scale, ".weight_shape": torch.tensor(matrix.shape)}
    return {name + end: part for end, part in stored.items()}, (codes * scale.float()[..., None]).view(matrix.shape)


def _mxfp4(name: str, matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    groups = matrix.view(len(matrix), -1, 32)
    powers = groups.abs().amax(-1).log2().floor() - 2
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat((numbers, -numbers))
    codes = (groups[..., None] / powers.exp2()[..., None, None] - numbers).abs().argmin(-1)
    values = (numbers[codes] * powers.exp2()[..., None]).view(matrix.shape)
    pairs = codes.view(len(matrix), -1, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
    return {f"{name}.weight_packed": packed, f"{name}.weight_scale": (powers + 127).to(torch.uint8)}, values


KINDS: dict[str, tuple[Callable[..., tuple[Tensors, torch.Tensor]], str, dict[str, Any]]] = {
    "fp8": (_fp8, "_proj", {"quant_method": "fp8", "weight_block_size": list(BLOCK)}),
    "int4": (_int4, ".experts.", _compressed("pack-quantized")),
    "mxfp4": (_mxfp4, ".experts.", _compressed("mxfp4-pack-quantized", type="float")),
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
