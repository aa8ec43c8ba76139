"""Tiny Kimi-Linear models for tests: every parameter drawn, no two sizes equal."""

from __future__ import annotations

from typing import Any

import torch
from parity_rig import randomise
from transformers import KimiLinearConfig, KimiLinearForCausalLM

LINEAR: dict[str, Any] = {
    "head_dim": 8,
    "num_heads": 5,
    "short_conv_kernel_size": 3,
    "kda_layers": [1, 2, 4],
    "full_attn_layers": [3, 5],
}
KIMI: dict[str, Any] = {
    "model_type": "kimi_linear",
    "vocab_size": 137,
    "hidden_size": 48,
    "intermediate_size": 80,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": None,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 6,
    "v_head_dim": 10,
    "num_experts": 6,
    "num_shared_experts": 2,
    "num_experts_per_token": 2,
    "num_expert_group": 1,
    "topk_group": 1,
    "moe_renormalize": True,
    "routed_scaling_factor": 2.446,
    "rms_norm_eps": 1e-5,
    "model_max_length": 512,
    "linear_attn_config": LINEAR,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def tiny_kimi_linear(change: dict[str, Any]) -> KimiLinearForCausalLM:
    """`KIMI` with `change`; channels forget between hardly anything and everything within a token."""
    model = KimiLinearForCausalLM(KimiLinearConfig(**{**KIMI, **change}))
    randomise(model)
    draw = torch.Generator().manual_seed(1)
    for name, module in model.named_modules():
        if name.endswith(("q_a_layernorm", "kv_a_layernorm")):
            module.variance_epsilon = KIMI["rms_norm_eps"]
        if hasattr(module, "A_log"):
            module.A_log.data.uniform_(-4, 2.5, generator=draw)
            module.dt_bias.data.uniform_(-5, 2, generator=draw)
    return model.eval()
