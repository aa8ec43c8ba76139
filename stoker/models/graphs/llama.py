"""The llama family: pre-norm blocks of grouped-query attention with rotary positions and a gated MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import torch

from stoker.models.graphs import config as configuration
from stoker.models.graphs.block import Block
from stoker.models.graphs.decoder import Decoder
from stoker.models.graphs.gqa import GroupedAttention, Grouping
from stoker.models.graphs.mlp import GatedMLP
from stoker.models.graphs.rotary import Rotary, Scaling
from stoker.models.weights.checkpoint import Checkpoint


class LlamaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What of config.json decides the computation."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Scaling | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool

    @property
    def grouping(self) -> Grouping:
        return Grouping(
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            size=self.head_dim,
            bias=self.attention_bias,
            output_bias=self.attention_bias,
            normed=False,
            epsilon=self.rms_norm_eps,
        )


def parse_config(config: Mapping[str, Any], where: str) -> LlamaConfig:
    """A config.json of model_type llama. Raises ModelError naming what is missing, malformed or not supported."""
    heads, width = config.get("num_attention_heads"), config.get("hidden_size")
    parsed = configuration.parse(
        config,
        LlamaConfig,
        where,
        defaults={
            "num_key_value_heads": heads,
            "head_dim": width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None,
            "rope_theta": 10000.0,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
        },
        fixed={"hidden_act": "silu", "pretraining_tp": 1, "partial_rotary_factor": 1.0},
        inert={"is_llama_config", "rope_interleaved"},
    )
    parsed.grouping.check(where, parsed.head_dim)
    return parsed


def build(config: Mapping[str, Any], weights: Checkpoint) -> Decoder:
    """The graph of a config.json. Raises ModelError if it is not supported or the checkpoint does not fit it."""
    parsed = parse_config(config, weights.where)
    rotary = Rotary.of(parsed, parsed.head_dim, weights.device)
    if "rope_freqs.weight" in weights:  # how a GGUF tells llama3 scaling
        stretched = weights.tensor("rope_freqs.weight", tuple(rotary.frequencies.shape), torch.float32)
        rotary = replace(rotary, frequencies=rotary.frequencies / stretched)
    return Decoder(parsed, weights, rotary, partial(_load_block, parsed, weights))


def _load_block(config: LlamaConfig, weights: Checkpoint, _: int, name: str) -> Block:
    hidden = config.hidden_size
    return Block(
        attention_norm=weights.tensor(f"{name}.input_layernorm.weight", (hidden,)),
        attention=GroupedAttention.load(weights, f"{name}.self_attn", hidden, config.grouping),
        feed_norm=weights.tensor(f"{name}.post_attention_layernorm.weight", (hidden,)),
        feed=GatedMLP.load(weights, f"{name}.mlp", hidden, config.intermediate_size, bias=config.mlp_bias),
    )
