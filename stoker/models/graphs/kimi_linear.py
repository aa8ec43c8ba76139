"""Kimi-Linear: most layers keep a delta memory, some attend over latents without positions; experts as in Kimi K2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from stoker.models.graphs import config as configuration
from stoker.models.graphs.block import Attention, Block, FeedForward
from stoker.models.graphs.decoder import Decoder
from stoker.models.graphs.kda import DeltaAttention, DeltaShape
from stoker.models.graphs.mla import LatentAttention, LatentShape
from stoker.models.graphs.mlp import GatedMLP
from stoker.models.graphs.moe import CorrectedExperts, MoE
from stoker.models.graphs.rotary import Rotary
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint

# the maker's words for what the other models with such experts call, as transformers does, by the second
_NAMES = {
    "moe_renormalize": "norm_topk_prob",
    "moe_router_activation_func": "scoring_func",
    "num_expert_group": "n_group",
    "num_experts": "n_routed_experts",
    "num_experts_per_token": "num_experts_per_tok",
    "num_local_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
}
_MATRICES = ("w1", "w3", "w2")  # gate, up and down of an expert

LayerKind = Literal["full_attention", "linear_attention"]


class _LinearAttention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The maker's `linear_attn_config`; layers are counted from 1."""

    head_dim: int
    num_heads: int
    short_conv_kernel_size: int
    full_attn_layers: list[int]
    kda_layers: list[int]

    def kinds(self, where: str) -> list[LayerKind]:
        layers = range(1, len(self.full_attn_layers) + len(self.kda_layers) + 1)
        if sorted(self.full_attn_layers + self.kda_layers) != list(layers):
            raise ModelError(f"{where}: full_attn_layers and kda_layers must together name each layer once")
        return ["linear_attention" if layer in self.kda_layers else "full_attention" for layer in layers]


class KimiLinearConfig(CorrectedExperts, frozen=True, kw_only=True):
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
    attention_bias: bool
    linear_num_heads: int
    linear_head_dim: int
    linear_conv_kernel_dim: int
    layer_types: tuple[LayerKind, ...]
    mlp_layer_types: tuple[Literal["dense", "sparse"], ...]
    rms_norm_eps: float
    tie_word_embeddings: bool
    num_nextn_predict_layers: int

    @property
    def latent(self) -> LatentShape:
        return LatentShape(
            heads=self.num_attention_heads,
            q_rank=self.q_lora_rank,
            kv_rank=self.kv_lora_rank,
            plain=self.qk_nope_head_dim,
            rotary=self.qk_rope_head_dim,
            value=self.v_head_dim,
            bias=self.attention_bias,
            epsilon=self.rms_norm_eps,
            scale=(self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5,
        )

    @property
    def delta(self) -> DeltaShape:
        return DeltaShape(
            heads=self.linear_num_heads,
            size=self.linear_head_dim,
            kernel=self.linear_conv_kernel_dim,
            epsilon=self.rms_norm_eps,
        )


def parse_config(config: Mapping[str, Any], where: str) -> KimiLinearConfig:
    """A config.json of model_type kimi_linear, in the maker's words or those of transformers. Raises ModelError naming
    what is missing, malformed or not supported."""
    values = {_NAMES.get(key, key): value for key, value in config.items() if key != "linear_attn_config"}
    layers, dense = config.get("num_hidden_layers"), config.get("first_k_dense_replace", 1)
    mlps = None
    if isinstance(layers, int) and isinstance(dense, int):
        mlps = ["dense" if index < dense else "sparse" for index in range(layers)]
    if config.get("linear_attn_config") is not None:
        linear = _parse_linear(config["linear_attn_config"], where)
        values["linear_head_dim"], values["linear_num_heads"] = linear.head_dim, linear.num_heads
        values["linear_conv_kernel_dim"] = linear.short_conv_kernel_size
        values["layer_types"] = linear.kinds(where)
    parsed = configuration.parse(
        values,
        KimiLinearConfig,
        where,
        defaults={
            "attention_bias": False,
            "mlp_layer_types": mlps,
            "num_nextn_predict_layers": 0,
            "n_shared_experts": 0,
            "q_lora_rank": None,
            "tie_word_embeddings": False,
        },
        fixed={
            "hidden_act": "silu",
            "mla_use_nope": True,
            "moe_layer_freq": 1,
            "num_key_value_heads": config.get("num_attention_heads"),
            "pretraining_tp": 1,
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "use_grouped_topk": True,
        },
        inert={
            "first_k_dense_replace",
            "head_dim",
            "model_max_length",
            "partial_rotary_factor",
            "qk_head_dim",
            "rope_scaling",
            "rope_theta",
        },
    )
    for key in ("layer_types", "mlp_layer_types"):
        if len(getattr(parsed, key)) != parsed.num_hidden_layers:
            raise ModelError(f"{where}: {key} names {len(getattr(parsed, key))} layers")
    if "full_attention" not in parsed.layer_types:
        raise ModelError(f"{where}: layer_types without full_attention are not supported")
    if parsed.linear_conv_kernel_dim < 2 or parsed.qk_rope_head_dim % 2:
        raise ModelError(f"{where}: short_conv_kernel_size must be at least 2, and qk_rope_head_dim even")
    parsed.mixture.check(where)
    return parsed


def _parse_linear(value: object, where: str) -> _LinearAttention:
    """What is off in it changes nothing: it need not be known."""
    try:
        on = {key: item for key, item in dict(value).items() if item not in (None, False)}  # pyright: ignore
        return msgspec.convert(on, _LinearAttention)
    except (TypeError, ValueError) as error:
        raise ModelError(f"{where}: linear_attn_config is not supported: {error}") from error


def build(config: Mapping[str, Any], weights: Checkpoint) -> Decoder:
    """The graph of a config.json. Raises ModelError if it is not supported or the checkpoint does not fit it."""
    parsed = parse_config(config, weights.where)
    hidden = parsed.hidden_size

    def block(layer: int, name: str) -> Block:
        if layer >= parsed.num_hidden_layers:
            raise ModelError(f"{weights.where}: layers that predict further tokens are not supported for kimi_linear")
        attention: Attention
        if parsed.layer_types[layer] == "linear_attention":
            attention = DeltaAttention.load(weights, f"{name}.self_attn", hidden, parsed.delta)
        else:
            attention = LatentAttention.load(weights, f"{name}.self_attn", hidden, parsed.latent)
        feed: FeedForward
        if parsed.mlp_layer_types[layer] == "sparse":
            feed = MoE.load(weights, f"{name}.block_sparse_moe", hidden, parsed.mixture, _MATRICES)
        else:
            stored = f"{name}.block_sparse_moe"  # transformers writes the dense layers there too, the maker below mlp
            stored = stored if f"{stored}.down_proj.weight" in weights else f"{name}.mlp"
            feed = GatedMLP.load(weights, stored, hidden, parsed.intermediate_size)
        return Block(
            attention_norm=weights.tensor(f"{name}.input_layernorm.weight", (hidden,)),
            attention=attention,
            feed_norm=weights.tensor(f"{name}.post_attention_layernorm.weight", (hidden,)),
            feed=feed,
        )

    rotary = Rotary.none(parsed.qk_rope_head_dim, weights.device)
    return Decoder(parsed, weights, rotary, block, mtp_layers=parsed.num_nextn_predict_layers)
