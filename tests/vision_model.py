"""A tiny random Kimi K2.5 with its eye, made by transformers and stored as its makers store theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from parity_rig import randomise
from safetensors.torch import load_file, save_file
from transformers.models.kimi_k25 import Kimi_K25Config, Kimi_K25ForConditionalGeneration

PAD = 5  # the id of an image's tokens
HIDDEN = 64

TEXT: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "moe_intermediate_size": 40,
    "num_hidden_layers": 2,
    "first_k_dense_replace": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.827,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
}
SIGHT = {
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "pos_emb_height": 8,
    "pos_emb_width": 8,
}
VISION_CONFIG = {
    "_attn_implementation": "flash_attention_2",
    "init_pos_emb_height": 8,
    "init_pos_emb_time": 4,
    "init_pos_emb_width": 8,
    "merge_kernel_size": [2, 2],
    "merge_type": "sd2_tpool",
    "mm_hidden_size": 32,
    "mm_projector_type": "patchmerger",
    "patch_size": 14,
    "pos_emb_type": "divided_fixed",
    "projector_hidden_act": "gelu",
    "projector_ln_eps": 1e-05,
    "text_hidden_size": HIDDEN,
    "video_attn_type": "spatial_temporal",
    "vt_hidden_size": 32,
    "vt_intermediate_size": 56,
    "vt_num_attention_heads": 2,
    "vt_num_hidden_layers": 2,
}
# What the library calls otherwise when it stores a model, and the makers' names.
_RENAMED = {
    "language_model.model.blocks.": "language_model.model.layers.",
    "lm_head.": "language_model.lm_head.",
    "model.mm_projector.": "mm_projector.",
    "vision_tower.encoder.patch_embed.": "vision_tower.patch_embed.",
}


def reference_model(**text: Any) -> Any:
    """Every parameter random. `text` changes the language model's configuration."""
    config = Kimi_K25Config(
        text_config={"model_type": "deepseek_v3", **TEXT, **text},
        vision_config=SIGHT,
        projection_hidden_size=SIGHT["hidden_size"],
        tie_word_embeddings=False,
        image_token_id=PAD,
        video_token_id=TEXT["vocab_size"] - 1,
    )
    model = Kimi_K25ForConditionalGeneration(config)
    randomise(model)
    return model.eval()


def save(model: Any, folder: Path, **config: Any) -> None:
    """The checkpoint in the makers' layout; `config` goes into the outer configuration."""
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    save_file({_makers_name(name): tensor for name, tensor in load_file(path).items()}, path)
    text = {**model.config.text_config.to_dict(), "model_type": "kimi_k2", "num_nextn_predict_layers": 0}
    outer = {
        "model_type": "kimi_k25",
        "architectures": ["KimiK25ForConditionalGeneration"],
        "text_config": text,
        "vision_config": VISION_CONFIG,
        "media_placeholder_token_id": PAD,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps({**outer, **config}))


def patches(pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What transformers takes of uint8 pixels [height, width, 3]: patches [N, 3, 14, 14], grid (1, rows, columns)."""
    values = (pixels.float().permute(2, 0, 1) / 255 - 0.5) / 0.5
    rows, columns = pixels.shape[0] // 14, pixels.shape[1] // 14
    cut = values.reshape(3, rows, 14, columns, 14).permute(1, 3, 0, 2, 4).reshape(-1, 3, 14, 14)
    return cut, torch.tensor([[1, rows, columns]])


def _makers_name(name: str) -> str:
    found = next((old for old in _RENAMED if name.startswith(old)), "")
    return _RENAMED.get(found, "") + name.removeprefix(found)
