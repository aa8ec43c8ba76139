"""GLM-4-9B-0414: grouped-query attention of which half of each head turns, in pairs, and norms on what is added too."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from stoker.models.graphs import config as configuration
from stoker.models.graphs.block import Block
from stoker.models.graphs.decoder import Decoder
from stoker.models.graphs.gqa import GroupedAttention, Grouping
from stoker.models.graphs.mlp import GatedMLP
from stoker.models.graphs.rotary import Rotary, Scaling
from stoker.models.weights.checkpoint import Checkpoint


class Glm4Config(msgspec.Struct, frozen=True, kw_only=True):
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
    partial_rotary_factor: float
    attention_bias: bool
    tie_word_embeddings: bool

    @property
    def grouping(self) -> Grouping:
        return Grouping(
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            size=self.head_dim,
            bias=self.attention_bias,
            output_bias=False,
            normed=False,
            epsilon=self.rms_norm_eps,
        )

    @property
    def rotary(self) -> int:
        """Dimensions of each head that turn."""
        return int(self.head_dim * self.partial_rotary_factor)


def parse_config(config: Mapping[str, Any], where: str) -> Glm4Config:
    """A config.json of model_type glm4. Raises ModelError naming what is missing, malformed or not supported."""
    parsed = configuration.parse(
        config,
        Glm4Config,
        where,
        defaults={"partial_rotary_factor": 0.5, "attention_bias": True, "tie_word_embeddings": False},
        fixed={"hidden_act": "silu"},
    )
    parsed.grouping.check(where, parsed.rotary)
    return parsed


def build(config: Mapping[str, Any], weights: Checkpoint) -> Decoder:
    """The graph of a config.json. Raises ModelError if it is not supported or the checkpoint does not fit it."""
    parsed = parse_config(config, weights.where)
    rotary = Rotary.of(parsed, parsed.rotary, weights.device, paired=True)
    return Decoder(parsed, weights, rotary, partial(_load_block, parsed, weights))


def _load_block(config: Glm4Config, weights: Checkpoint, _: int, name: str) -> Block:
    hidden = config.hidden_size
    return Block(
        attention_norm=weights.tensor(f"{name}.input_layernorm.weight", (hidden,)),
        attention=GroupedAttention.load(weights, f"{name}.self_attn", hidden, config.grouping),
        feed_norm=weights.tensor(f"{name}.post_attention_layernorm.weight", (hidden,)),
        feed=GatedMLP.load(weights, f"{name}.mlp", hidden, config.intermediate_size),
        attention_post_norm=weights.tensor(f"{name}.post_self_attn_layernorm.weight", (hidden,)),
        feed_post_norm=weights.tensor(f"{name}.post_mlp_layernorm.weight", (hidden,)),
    )
