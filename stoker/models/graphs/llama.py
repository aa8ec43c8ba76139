"""The llama family: pre-norm blocks of grouped-query attention with rotary positions and a gated MLP.

Names and meaning of the configuration are those of Hugging Face's config.json. What it asks for and this graph does
not do is refused by name when the model loads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.nn import functional

from stoker.kernels.activation import silu_mul
from stoker.kernels.linear import Weight, linear
from stoker.kernels.norm import rms_norm
from stoker.kernels.rope import rotate, rotations
from stoker.models.context import ForwardContext, PagedSpec
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint


class Llama3Scaling(msgspec.Struct, frozen=True, tag_field="rope_type", tag="llama3"):
    """Long wavelengths are stretched by `factor`, short ones kept, with a ramp between (the Llama 3.1 release)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class LinearScaling(msgspec.Struct, frozen=True, tag_field="rope_type", tag="linear"):
    """All positions are divided by `factor`."""

    factor: float


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
    rope_scaling: Llama3Scaling | LinearScaling | None
    tie_word_embeddings: bool
    attention_bias: bool
    mlp_bias: bool


# keys that do not change what the graph computes
_INERT = {
    "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id", "dtype", "eos_token_id",
    "initializer_range", "is_llama_config", "max_position_embeddings", "model_type", "pad_token_id", "rope_interleaved",
    "torch_dtype", "transformers.js_config", "transformers_version", "unsloth_fixed", "unsloth_version", "use_cache",
}  # fmt: skip
# keys that may only say what the graph does anyway
_FIXED = {"hidden_act": "silu", "pretraining_tp": 1, "partial_rotary_factor": 1.0}


def parse_config(config: dict[str, Any], where: str) -> LlamaConfig:
    """A config.json of model_type llama. Raises ModelError naming what is missing, malformed or not supported."""
    values = dict(config)
    rope = _rope_values(values)
    for key, value in _FIXED.items():
        if values.pop(key, value) != value:
            raise ModelError(f"{where}: {key} = {config[key]!r} is not supported, only {value!r}")
    heads, width = values.get("num_attention_heads"), values.get("hidden_size")
    _default(values, "num_key_value_heads", heads)
    _default(
        values, "head_dim", width // heads if isinstance(width, int) and isinstance(heads, int) and heads else None
    )
    for key in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
        _default(values, key, False)
    values.update(rope)
    for key, value in values.items():
        if key not in LlamaConfig.__struct_fields__ and key not in _INERT and value not in (None, False):
            raise ModelError(f"{where}: the llama graph does not support {key} = {value!r}")
    try:
        parsed = msgspec.convert(values, LlamaConfig)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: the model's configuration is not usable: {error}") from error
    if parsed.num_attention_heads % parsed.num_key_value_heads or parsed.head_dim % 2:
        raise ModelError(
            f"{where}: {parsed.num_attention_heads} heads of {parsed.head_dim} dimensions over "
            f"{parsed.num_key_value_heads} KV heads: the heads must divide evenly, the dimensions be even"
        )
    return parsed


def _rope_values(values: dict[str, Any]) -> dict[str, Any]:
    """Takes the rotary settings, in their old or new spelling, out of `values`."""
    new: dict[str, Any] = values.pop("rope_parameters", None) or {}
    scaling: dict[str, Any] = values.pop("rope_scaling", None) or {}
    merged = {**scaling, **new}
    theta = merged.pop("rope_theta", values.pop("rope_theta", 10000.0))
    kind = merged.pop("rope_type", merged.pop("type", "default"))
    merged.pop("type", None)
    return {"rope_theta": theta, "rope_scaling": None if kind == "default" else {"rope_type": kind, **merged}}


def _default(values: dict[str, Any], key: str, value: object) -> None:
    if values.get(key) is None:
        values[key] = value


def rope_frequencies(config: LlamaConfig) -> torch.Tensor:
    """Radians per position of each pair of dimensions, [head_dim / 2] float32."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if isinstance(scaling, LinearScaling):
        return frequencies / scaling.factor
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(frequencies / scaling.factor, frequencies, ramp.clamp(0, 1))


@dataclass(frozen=True, slots=True)
class _Layer:
    attention_norm: torch.Tensor
    qkv: Weight
    output: Weight
    mlp_norm: torch.Tensor
    gate_up: Weight
    down: Weight


class LlamaGraph:
    """A `Graph`. q, k and v are one matrix, gate and up another."""

    def __init__(self, config: LlamaConfig, weights: Checkpoint) -> None:
        """Takes every tensor of the checkpoint; raises ModelError if they do not fit the configuration."""
        self.config = config
        self._dtype = weights.dtype
        hidden = config.hidden_size
        self._embedding = weights.tensor("model.embed_tokens.weight", (config.vocab_size, hidden))
        self._layers = [_load_layer(config, weights, index) for index in range(config.num_hidden_layers)]
        self._norm = weights.tensor("model.norm.weight", (hidden,))
        self._head = (
            Weight(self._embedding)  # as it is: a second layout would double the largest matrix
            if config.tie_word_embeddings
            else weights.linear(["lm_head"], [config.vocab_size], hidden)
        )
        if config.tie_word_embeddings and "lm_head.weight" in weights:
            weights.tensor("lm_head.weight", (config.vocab_size, hidden))  # some writers store the tied copy too
        frequencies = rope_frequencies(config)
        if "rope_freqs.weight" in weights:  # how a GGUF tells llama3 scaling
            frequencies = (
                frequencies / weights.tensor("rope_freqs.weight", tuple(frequencies.shape), torch.float32).cpu()
            )
        self._frequencies = frequencies.to(weights.device)
        weights.finish()

    @property
    def caches(self) -> Sequence[PagedSpec]:
        spec = PagedSpec(kv_heads=self.config.num_key_value_heads, head_dim=self.config.head_dim)
        return [spec] * self.config.num_hidden_layers

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @torch.inference_mode()
    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        config = self.config
        heads, kv_heads, size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        scale = size**-0.5
        tokens = token_ids.shape[0]
        cos, sin = rotations(context.layout.positions, self._frequencies, self._dtype)
        hidden = functional.embedding(token_ids, self._embedding)
        for index, layer in enumerate(self._layers):
            qkv = linear(rms_norm(hidden, layer.attention_norm, config.rms_norm_eps), layer.qkv)
            qkv = qkv.view(tokens, heads + 2 * kv_heads, size)
            turned = rotate(qkv[:, : heads + kv_heads], cos, sin)
            attended = context.paged(index).attend(
                turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :], scale
            )
            hidden = hidden + linear(attended.reshape(tokens, heads * size), layer.output)
            gate_up = linear(rms_norm(hidden, layer.mlp_norm, config.rms_norm_eps), layer.gate_up)
            hidden = hidden + linear(silu_mul(gate_up), layer.down)
        return rms_norm(hidden, self._norm, config.rms_norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self._head).float()


def _load_layer(config: LlamaConfig, weights: Checkpoint, index: int) -> _Layer:
    name = f"model.layers.{index}"
    hidden, inner = config.hidden_size, config.intermediate_size
    q_rows, kv_rows = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    attention, mlp = f"{name}.self_attn", f"{name}.mlp"
    return _Layer(
        attention_norm=weights.tensor(f"{name}.input_layernorm.weight", (hidden,)),
        qkv=weights.linear(
            [f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"],
            [q_rows, kv_rows, kv_rows],
            hidden,
            bias=config.attention_bias,
        ),
        output=weights.linear([f"{attention}.o_proj"], [hidden], q_rows, bias=config.attention_bias),
        mlp_norm=weights.tensor(f"{name}.post_attention_layernorm.weight", (hidden,)),
        gate_up=weights.linear([f"{mlp}.gate_proj", f"{mlp}.up_proj"], [inner, inner], hidden, bias=config.mlp_bias),
        down=weights.linear([f"{mlp}.down_proj"], [hidden], inner, bias=config.mlp_bias),
    )
