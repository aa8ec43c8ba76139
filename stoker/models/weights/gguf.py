"""A GGUF file as a checkpoint with Hugging Face names, and its metadata as a Hugging Face configuration.

Only the llama architecture so far. Its writer reorders the rows of q and k so that neighbouring dimensions turn
together; `_unpermuted` puts them back, because our graphs turn halves.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stoker.kernels.quantized import Quantized
from stoker.models.gguf_meta import TensorInfo, read_metadata
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Codes
from stoker.models.weights.ggml import STORAGE, Storage, codes, decode

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_OTHER_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "rope_freqs.weight",
}
_CONFIG_KEYS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
_CHECKED_KEYS = {"attention.value_length", "rope.dimension_count", "expert_count", "expert_used_count"}
_SCALING = "rope.scaling."


class GGUFSource:
    """The checkpoint in one GGUF file, memory-mapped."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        self.metadata, stored = read_metadata(path)
        self._tensors = {_hf_name(name): info for name, info in stored.items()}
        self.names = frozenset(self._tensors)
        with path.open("rb") as file:
            # private and writable, because torch warns of read-only memory; nothing writes
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._heads = {
            "q_proj": self.metadata.get("llama.attention.head_count"),
            "k_proj": self.metadata.get(
                "llama.attention.head_count_kv", self.metadata.get("llama.attention.head_count")
            ),
        }

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def size(self, name: str) -> int:
        info = self._tensors[name]
        storage = self._storage(name)
        return info.elements // storage.elements * storage.bytes

    def check(self, name: str) -> None:
        self._storage(name)

    def fetch(self, name: str, idle: Callable[[], None]) -> None:
        """Nothing: one file is decoded about as slowly as page faults bring it in."""

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        raw, storage = self._rows(name)
        return decode(raw, storage, dtype).view(self._tensors[name].shape)

    def codes(self, name: str) -> Codes | None:
        return codes(*self._rows(name))

    def quantized(self, name: str) -> Quantized | None:
        return None  # dense and, where they have them, codes are faster on a CPU than what is stored

    def config(self) -> dict[str, Any]:
        """What config.json would say. Raises ModelError for metadata whose meaning is not known."""
        architecture = self.metadata.get("general.architecture")
        if architecture != "llama":
            raise ModelError(f"{self.where} holds a {architecture} model: only llama GGUFs are supported so far")
        prefix = "llama."
        own = {key[len(prefix) :]: value for key, value in self.metadata.items() if key.startswith(prefix)}
        config: dict[str, Any] = {"model_type": "llama"}
        scaling: dict[str, Any] = {}
        for key, value in own.items():
            if key in _CONFIG_KEYS:
                config[_CONFIG_KEYS[key]] = value
            elif key.startswith(_SCALING):
                scaling[key[len(_SCALING) :]] = value
            elif key not in _CHECKED_KEYS:
                raise ModelError(f"{self.where}: the metadata {prefix}{key} = {value!r} is not supported")
        heads, width = config.get("num_attention_heads"), config.get("hidden_size")
        size = config.get("head_dim") or (width // heads if width and heads else None)
        for key in ("attention.value_length", "rope.dimension_count"):
            if own.get(key, size) != size:
                raise ModelError(
                    f"{self.where}: {prefix}{key} = {own[key]} is not supported, heads have {size} dimensions"
                )
        if own.get("expert_count", 0):
            raise ModelError(f"{self.where}: {prefix}expert_count = {own['expert_count']} is not supported yet")
        embedding = self._tensors.get("model.embed_tokens.weight")
        if embedding is not None:
            config.setdefault("vocab_size", embedding.shape[0])
        config["tie_word_embeddings"] = "lm_head.weight" not in self._tensors
        config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in self._tensors
        config["mlp_bias"] = "model.layers.0.mlp.gate_proj.bias" in self._tensors
        if scaling.get("type", "none") != "none":
            config["rope_scaling"] = {"rope_type": scaling["type"], "factor": scaling.get("factor")}
        return config

    def _storage(self, name: str) -> Storage:
        storage = STORAGE.get(self._tensors[name].type)
        if storage is None:
            known = ", ".join(kind.name for kind in STORAGE.values())
            kind = self._tensors[name].type
            raise ModelError(f"{self.where}: the tensor {name} has ggml type {kind}; supported are {known}")
        return storage

    def _rows(self, name: str) -> tuple[torch.Tensor, Storage]:
        """The stored bytes [rows, row bytes] of a tensor, q and k rows in Hugging Face order."""
        info = self._tensors[name]
        storage = self._storage(name)
        if info.shape[-1] % storage.elements:
            raise ModelError(f"{self.where}: the rows of {name} are not whole {storage.name} blocks")
        size = self.size(name)
        if info.offset + size > len(self._map):
            raise ModelError(f"{self.where} ends inside the tensor {name}: it is truncated, fetch it again")
        raw = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=info.offset)
        rows = raw.view(-1, info.shape[-1] // storage.elements * storage.bytes) if len(info.shape) > 1 else raw[None]
        heads = self._heads.get(name.split(".")[-2])
        return (_unpermuted(rows, info, heads) if heads else rows), storage


def _unpermuted(rows: torch.Tensor, info: TensorInfo, heads: int) -> torch.Tensor:
    """Rows (h, pair, half) -> (h, half, pair). A bias is one row of values: its bytes are reordered alike."""
    count = info.shape[0]
    if count % (2 * heads):
        raise ModelError(f"{info.name} has {count} rows, which {heads} heads do not divide into pairs")
    return rows.view(heads, count // heads // 2, 2, -1).transpose(1, 2).reshape(rows.shape)


def _hf_name(name: str) -> str:
    """The Hugging Face name of a llama tensor; one we do not know keeps its own and will be reported as left over."""
    layer = _LAYER.fullmatch(name)
    if layer is not None and layer[2] in _LAYER_NAMES:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{layer[3]}"
    return _OTHER_NAMES.get(name, name)
