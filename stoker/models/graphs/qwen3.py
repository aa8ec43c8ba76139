"""Qwen3, dense and with experts: grouped-query attention with a norm over each head of queries and keys."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from stoker.kernels.router import Routing
from stoker.models.graphs import config as configuration
from stoker.models.graphs.block import Block, FeedForward
from stoker.models.graphs.decoder import Decoder
from stoker.models.graphs.gqa import GroupedAttention, Grouping
from stoker.models.graphs.mlp import GatedMLP
from stoker.models.graphs.moe import Mixture, MoE
from stoker.models.graphs.rotary import Rotary, Scaling
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint


class Qwen3Config(msgspec.Struct, frozen=True, kw_only=True):
    """What of config.json decides the computation. `num_experts` is 0 in dense models."""

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
    attention_bias: bool
    tie_word_embeddings: bool
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    norm_topk_prob: bool
    decoder_sparse_step: int
    mlp_only_layers: tuple[int, ...]

    @property
    def grouping(self) -> Grouping:
        return Grouping(
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            size=self.head_dim,
            bias=self.attention_bias,
            output_bias=self.attention_bias,
            normed=True,
            epsilon=self.rms_norm_eps,
        )

    @property
    def mixture(self) -> Mixture:
        routing = Routing(scoring="softmax", top_k=self.num_experts_per_tok, normalise=self.norm_topk_prob)
        return Mixture(experts=self.num_experts, inner=self.moe_intermediate_size, routing=routing, corrected=False)

    def sparse(self, layer: int) -> bool:
        """Whether the layer has experts."""
        chosen = self.num_experts > 0 and (layer + 1) % self.decoder_sparse_step == 0
        return chosen and layer not in self.mlp_only_layers


def parse_config(config: Mapping[str, Any], where: str) -> Qwen3Config:
    """A config.json of model_type qwen3 or qwen3_moe. Raises ModelError naming what is missing, malformed or not
    supported."""
    dense = config.get("model_type") == "qwen3"
    experts: dict[str, Any] = {"num_experts": config.get("num_local_experts")}  # transformers' newer name
    if dense:
        experts = {"num_experts": 0, "num_experts_per_tok": 0, "moe_intermediate_size": 0}
    defaults = {"attention_bias": False, "tie_word_embeddings": False, "norm_topk_prob": False, "mlp_only_layers": []}
    parsed = configuration.parse(
        config,
        Qwen3Config,
        where,
        defaults={**defaults, "decoder_sparse_step": 1, **experts},
        fixed={"hidden_act": "silu", "partial_rotary_factor": 1.0, "use_sliding_window": False},
        inert={"layer_types", "max_window_layers", "num_local_experts", "sliding_window"},
    )
    if any(kind != "full_attention" for kind in config.get("layer_types") or ()):
        raise ModelError(f"{where}: layer_types = {config['layer_types']!r} is not supported, only full_attention")
    parsed.grouping.check(where, parsed.head_dim)
    if parsed.num_experts:
        parsed.mixture.check(where)
    return parsed


def build(config: Mapping[str, Any], weights: Checkpoint) -> Decoder:
    """The graph of a config.json. Raises ModelError if it is not supported or the checkpoint does not fit it."""
    parsed = parse_config(config, weights.where)
    rotary = Rotary.of(parsed, parsed.head_dim, weights.device)
    return Decoder(parsed, weights, rotary, partial(_load_block, parsed, weights))


def _load_block(config: Qwen3Config, weights: Checkpoint, index: int, name: str) -> Block:
    hidden = config.hidden_size
    feed: FeedForward
    if config.sparse(index):
        feed = MoE.load(weights, f"{name}.mlp", hidden, config.mixture)
    else:
        feed = GatedMLP.load(weights, f"{name}.mlp", hidden, config.intermediate_size)
    return Block(
        attention_norm=weights.tensor(f"{name}.input_layernorm.weight", (hidden,)),
        attention=GroupedAttention.load(weights, f"{name}.self_attn", hidden, config.grouping),
        feed_norm=weights.tensor(f"{name}.post_attention_layernorm.weight", (hidden,)),
        feed=feed,
    )
