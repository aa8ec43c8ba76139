"""GLM-5 to 5.3: latent attention over what an indexer chooses, its choice shared by some layers, and experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from stoker.models.graphs import deepseek
from stoker.models.graphs.decoder import Decoder
from stoker.models.graphs.deepseek import DeepseekConfig
from stoker.models.graphs.dsa import IndexShape, SparseLatentAttention
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint


class GlmDsaConfig(DeepseekConfig, frozen=True, kw_only=True):
    """What of config.json decides the computation. A `shared` layer has no indexer."""

    index_n_heads: int
    index_head_dim: int
    index_topk: int
    indexer_types: tuple[Literal["full", "shared"], ...]


def parse_config(config: Mapping[str, Any], where: str) -> GlmDsaConfig:
    """A config.json of model_type glm_moe_dsa. Raises ModelError naming what is missing, malformed or not supported."""
    parsed = deepseek.parse_as(
        GlmDsaConfig,
        config,
        where,
        defaults={"indexer_types": _indexer_types(config, where)},
        fixed={"indexer_rope_interleave": True, "rope_interleave": True, "mlp_bias": False},
        inert={"index_share_for_mtp_iteration", "index_skip_topk_offset", "index_topk_freq", "layer_types"},
    )
    if any(kind != "indexed_attention" for kind in config.get("layer_types") or ()):
        raise ModelError(f"{where}: layer_types = {config['layer_types']!r} is not supported, only indexed_attention")
    if len(parsed.indexer_types) != parsed.num_hidden_layers or parsed.indexer_types[0] != "full":
        raise ModelError(f"{where}: indexer_types must name every layer, and the first as full")
    if parsed.index_head_dim < parsed.qk_rope_head_dim:
        raise ModelError(f"{where}: index_head_dim = {parsed.index_head_dim} is less than qk_rope_head_dim")
    return parsed


def _indexer_types(config: Mapping[str, Any], where: str) -> list[str] | None:
    """Where no list says it: every `index_topk_freq`-th layer is full from the `index_skip_topk_offset`-th on."""
    layers, every, offset = (config.get(k) for k in ("num_hidden_layers", "index_topk_freq", "index_skip_topk_offset"))
    if not isinstance(layers, int):
        return None
    if every is None or every == 1:
        return ["full"] * layers
    if not isinstance(every, int) or not isinstance(offset, int) or every < 1:
        raise ModelError(f"{where}: index_topk_freq = {every!r} with index_skip_topk_offset = {offset!r}")
    return ["full" if max(index - offset + 1, 0) % every == 0 else "shared" for index in range(layers)]


def build(config: Mapping[str, Any], weights: Checkpoint) -> Decoder:
    """The graph of a config.json. Raises ModelError if it is not supported or the checkpoint does not fit it."""
    parsed = parse_config(config, weights.where)
    index = IndexShape(parsed.index_n_heads, parsed.index_head_dim, parsed.index_topk)

    def attention(layer: int, name: str) -> SparseLatentAttention:
        own = index if layer >= parsed.num_hidden_layers or parsed.indexer_types[layer] == "full" else None
        return SparseLatentAttention.load(weights, name, parsed.hidden_size, parsed.attention, own)

    return deepseek.assemble(parsed, weights, attention)
