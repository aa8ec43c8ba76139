"""A model's files -> a graph ready to run, and the dtype a device runs best in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stoker.models.context import Graph
from stoker.models.graphs import deepseek, glm4, glm4_moe, glm_dsa, kimi_linear, llama, qwen3
from stoker.models.source import ModelError, ModelFiles, read_json
from stoker.models.weights.checkpoint import Checkpoint, Source
from stoker.models.weights.gguf import GGUFSource
from stoker.models.weights.quantization import QuantizedSource, take_scheme
from stoker.models.weights.safetensors import SafetensorsSource

FAMILIES: dict[str, Callable[[Mapping[str, Any], Checkpoint], Graph]] = {
    "deepseek_v3": deepseek.build,
    "glm4": glm4.build,
    "glm4_moe": glm4_moe.build,
    "glm4_moe_lite": deepseek.build,
    "glm_moe_dsa": glm_dsa.build,
    "kimi_k2": deepseek.build,
    "kimi_linear": kimi_linear.build,
    "llama": llama.build,
    "qwen3": qwen3.build,
    "qwen3_moe": qwen3.build,
}
"""What builds the graph of a configuration, by its model_type."""

_WITH_VISION = {"kimi_k25": ("language_model.", r"(vision_tower|mm_projector)\..*")}
"""Models whose language model is their `text_config`: the prefix of its tensors, and the tensors of the rest, which is
left out: they take text only."""


class Family(NamedTuple):
    """What is built from a config.json: `config` is its language model's part, whose tensors lie below `prefix`;
    tensors that match `left_out` belong to other parts."""

    build: Callable[[Mapping[str, Any], Checkpoint], Graph]
    config: Mapping[str, Any]
    prefix: str
    left_out: str | None

    def graph(self, weights: Checkpoint) -> Graph:
        """Raises ModelError if the configuration is not supported, or the weights do not fit it."""
        if self.left_out is not None:
            weights.ignore(self.left_out)
        return self.build(self.config, weights)


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """Raises ModelError for a model_type that has no graph."""
    kind, prefix, left_out = config.get("model_type"), "", None
    if kind in _WITH_VISION:
        prefix, left_out = _WITH_VISION[kind]
        config = config.get("text_config") or {}
        kind = config.get("model_type")
    if kind not in FAMILIES:
        known = ", ".join(sorted({*FAMILIES, *_WITH_VISION}))
        raise ModelError(f"{where}: model_type {kind!r} is not supported; supported are {known}")
    return Family(FAMILIES[kind], config, prefix, left_out)


def load_graph(
    files: ModelFiles, *, dtype: torch.dtype, device: torch.device, progress: Callable[[str, float], None]
) -> Graph:
    """Reads configuration and weights; `progress` is told (stage, fraction 0..1). Raises ModelError."""
    if files.gguf is not None:
        source = GGUFSource(Path(files.gguf))
        return build_graph(source.config(), source, dtype=dtype, device=device, progress=progress)
    config = read_json(Path(files.root) / "config.json")
    source = open_folder(Path(files.root), config)
    return build_graph(config, source, dtype=dtype, device=device, progress=progress)


def build_graph(
    config: Mapping[str, Any],
    source: Source,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[str, float], None],
) -> Graph:
    """The graph that a config.json describes, with the weights of `source`. Raises ModelError if the configuration is
    not supported, or the weights do not fit it."""
    family = family_of(config, source.where)
    return family.graph(Checkpoint(source, dtype, device, progress, family.prefix))


def open_folder(root: Path, config: dict[str, Any]) -> Source:
    """The weights of a folder; how they were quantised is taken out of `config`."""
    source, scheme = SafetensorsSource(root), take_scheme(config, str(root / "config.json"))
    return source if scheme is None else QuantizedSource(source, scheme)


def preferred_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device multiplies it natively, else float32."""
    if device.type == "cuda":
        return torch.bfloat16
    native = (
        torch.cpu._is_avx512_bf16_supported()  # pyright: ignore[reportPrivateUsage]
        or torch.cpu._is_amx_tile_supported()  # pyright: ignore[reportPrivateUsage]
    )
    return torch.bfloat16 if device.type == "cpu" and native else torch.float32
