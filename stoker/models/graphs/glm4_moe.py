"""GLM-4.5, 4.6, 4.7 and Air: grouped-query attention of which half of each head turns, and a mixture of experts."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from stoker.models.graphs import config as configuration
from stoker.models.graphs.block import Block, FeedForward
from stoker.models.graphs.decoder import Decoder
from stoker.models.graphs.gqa import GroupedAttention, Grouping
from stoker.models.graphs.mlp import GatedMLP
from stoker.models.graphs.moe import CorrectedExperts, MoE
from stoker.models.graphs.rotary import Rotary, Scaling
from stoker.models.weights.checkpoint import Checkpoint


class Glm4MoeConfig(CorrectedExperts, frozen=True, kw_only=True):
    """What of config.json decides the computation."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    first_k_dense_replace: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Scaling | None
    partial_rotary_factor: float
    attention_bias: bool
    use_qk_norm: bool
    tie_word_embeddings: bool
    num_nextn_predict_layers: int

    @property
    def grouping(self) -> Grouping:
        return Grouping(
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            size=self.head_dim,
            bias=self.attention_bias,
            output_bias=False,
            normed=self.use_qk_norm,
            epsilon=self.rms_norm_eps,
        )

    @property
    def rotary(self) -> int:
        """Dimensions of each head that turn."""
        return int(self.head_dim * self.partial_rotary_factor)


def parse_config(config: Mapping[str, Any], where: str) -> Glm4MoeConfig:
    """A config.json of model_type glm4_moe. Raises ModelError naming what is missing, malformed or not supported."""
    parsed = configuration.parse(
        config,
        Glm4MoeConfig,
        where,
        defaults={
            "n_shared_experts": 0,
            "partial_rotary_factor": 0.5,
            "attention_bias": False,
            "use_qk_norm": False,
            "tie_word_embeddings": False,
            "num_nextn_predict_layers": config.get("num_mtp_layers") or 0,
        },
        fixed={"hidden_act": "silu", "scoring_func": "sigmoid", "topk_method": "noaux_tc"},
        inert={"num_mtp_layers"},
    )
    parsed.grouping.check(where, parsed.rotary)
    parsed.mixture.check(where)
    return parsed


def build(config: Mapping[str, Any], weights: Checkpoint) -> Decoder:
    """The graph of a config.json. Raises ModelError if it is not supported or the checkpoint does not fit it."""
    parsed = parse_config(config, weights.where)
    rotary = Rotary.of(parsed, parsed.rotary, weights.device)
    block = partial(_load_block, parsed, weights)
    return Decoder(parsed, weights, rotary, block, mtp_layers=parsed.num_nextn_predict_layers)


def _load_block(config: Glm4MoeConfig, weights: Checkpoint, index: int, name: str) -> Block:
    hidden = config.hidden_size
    feed: FeedForward
    if index < config.first_k_dense_replace:
        feed = GatedMLP.load(weights, f"{name}.mlp", hidden, config.intermediate_size)
    else:
        feed = MoE.load(weights, f"{name}.mlp", hidden, config.mixture)
    return Block(
        attention_norm=weights.tensor(f"{name}.input_layernorm.weight", (hidden,)),
        attention=GroupedAttention.load(weights, f"{name}.self_attn", hidden, config.grouping),
        feed_norm=weights.tensor(f"{name}.post_attention_layernorm.weight", (hidden,)),
        feed=feed,
    )
