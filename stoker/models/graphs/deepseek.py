"""Latent attention and a mixture of experts, as DeepSeek-V3 (2024) joined them: Kimi K2 to K2.6, and GLM-4.7-Flash.

The models differ in numbers only: those of their configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from stoker.models.graphs import config as configuration
from stoker.models.graphs.block import Attention, Block, FeedForward
from stoker.models.graphs.decoder import Decoder
from stoker.models.graphs.mla import LatentAttention, LatentShape
from stoker.models.graphs.mlp import GatedMLP
from stoker.models.graphs.moe import CorrectedExperts, MoE
from stoker.models.graphs.rotary import Rotary, Scaling, softmax_factor
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint


class DeepseekConfig(CorrectedExperts, frozen=True, kw_only=True):
    """What of config.json decides the computation."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    mlp_layer_types: tuple[Literal["dense", "sparse"], ...]
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: Scaling | None
    rope_interleave: bool
    attention_bias: bool
    tie_word_embeddings: bool
    num_nextn_predict_layers: int

    @property
    def attention(self) -> LatentShape:
        return LatentShape(
            heads=self.num_attention_heads,
            q_rank=self.q_lora_rank,
            kv_rank=self.kv_lora_rank,
            plain=self.qk_nope_head_dim,
            rotary=self.qk_rope_head_dim,
            value=self.v_head_dim,
            bias=self.attention_bias,
            epsilon=self.rms_norm_eps,
            scale=(self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5 * softmax_factor(self.rope_scaling),
        )


Config = TypeVar("Config", bound=DeepseekConfig)


def parse_config(config: Mapping[str, Any], where: str) -> DeepseekConfig:
    """A config.json of model_type deepseek_v3, kimi_k2 or glm4_moe_lite. Raises ModelError naming what is missing,
    malformed or not supported."""
    return parse_as(DeepseekConfig, config, where)


def parse_as(
    kind: type[Config],
    config: Mapping[str, Any],
    where: str,
    *,
    defaults: Mapping[str, object] = MappingProxyType({}),
    fixed: Mapping[str, object] = MappingProxyType({}),
    inert: Collection[str] = (),
) -> Config:
    """`parse_config` for a family that knows more keys: `defaults`, `fixed` and `inert` are for those."""
    layers, dense = config.get("num_hidden_layers"), config.get("first_k_dense_replace")
    kinds = None
    if isinstance(layers, int) and isinstance(dense, int):
        kinds = ["dense" if index < dense else "sparse" for index in range(layers)]
    parsed = configuration.parse(
        config,
        kind,
        where,
        defaults={
            "q_lora_rank": None,
            "n_shared_experts": 0,
            "mlp_layer_types": kinds,
            "rope_interleave": True,
            "attention_bias": False,
            "tie_word_embeddings": False,
            "num_nextn_predict_layers": config.get("num_mtp_layers") or 0,
            **defaults,
        },
        fixed={
            "hidden_act": "silu",
            "moe_layer_freq": 1,
            "num_key_value_heads": config.get("num_attention_heads"),
            "partial_rotary_factor": 1.0,
            "pretraining_tp": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            **fixed,
        },
        inert={"first_k_dense_replace", "head_dim", "num_mtp_layers", "qk_head_dim", *inert},
    )
    if len(parsed.mlp_layer_types) != parsed.num_hidden_layers:
        raise ModelError(f"{where}: mlp_layer_types names {len(parsed.mlp_layer_types)} layers")
    if parsed.qk_rope_head_dim % 2:
        raise ModelError(f"{where}: qk_rope_head_dim = {parsed.qk_rope_head_dim} must be even")
    parsed.mixture.check(where)
    return parsed


def build(config: Mapping[str, Any], weights: Checkpoint) -> Decoder:
    """The graph of a config.json. Raises ModelError if it is not supported or the checkpoint does not fit it."""
    parsed = parse_config(config, weights.where)
    return assemble(
        parsed,
        weights,
        lambda layer, name: LatentAttention.load(weights, name, parsed.hidden_size, parsed.attention),
    )


def assemble(config: DeepseekConfig, weights: Checkpoint, attention: Callable[[int, str], Attention]) -> Decoder:
    """The graph around the attention of each layer, which `attention` loads by the layer's number and tensor name."""
    weights.ignore(r".*\.self_attn\.rotary_emb\.inv_freq")  # a table that some writers store
    hidden = config.hidden_size

    def block(layer: int, name: str) -> Block:
        feed: FeedForward
        if layer >= config.num_hidden_layers or config.mlp_layer_types[layer] == "sparse":
            feed = MoE.load(weights, f"{name}.mlp", hidden, config.mixture)
        else:
            feed = GatedMLP.load(weights, f"{name}.mlp", hidden, config.intermediate_size)
        return Block(
            attention_norm=weights.tensor(f"{name}.input_layernorm.weight", (hidden,)),
            attention=attention(layer, f"{name}.self_attn"),
            feed_norm=weights.tensor(f"{name}.post_attention_layernorm.weight", (hidden,)),
            feed=feed,
        )

    rotary = Rotary.of(config, config.qk_rope_head_dim, weights.device, paired=config.rope_interleave)
    return Decoder(config, weights, rotary, block, mtp_layers=config.num_nextn_predict_layers)
