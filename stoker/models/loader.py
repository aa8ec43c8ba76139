"""A model's files -> a graph ready to run, and the dtype a device runs best in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from stoker.models.context import Graph, Vision
from stoker.models.graphs import deepseek, glm4, glm4_moe, glm_dsa, kimi_linear, llama, qwen3
from stoker.models.graphs.moonvit import MoonViT
from stoker.models.graphs.seeing import Seeing
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

_SEEING = {"kimi_k25": MoonViT}
"""Models whose language model is their `text_config` and lies below `language_model.`: what reads images in them."""


_NOT_YET = {
    "glm5_next": "GLM-5.3-Flash",
    "Glm5NextForConditionalGeneration": "GLM-5.3-Flash",
    "kimi_k3": "Kimi K3",
    "KimiK3ForConditionalGeneration": "Kimi K3",
}
"""Published models whose network is none of the above, by model_type or architecture."""


class Family(NamedTuple):
    """What is built from a config.json: the graph of its language model, and the vision before it if it has one.
    `text` and `vision` are the configurations of the two; `prefix` is that of the language model's tensors. One that
    was stored without its vision takes text only."""

    build: Callable[[Mapping[str, Any], Checkpoint], Graph]
    text: Mapping[str, Any]
    prefix: str = ""
    sees: Callable[[Mapping[str, Any], int, Checkpoint], Vision] | None = None
    vision: Mapping[str, Any] | None = None

    def graph(self, weights: Checkpoint) -> Graph:
        """Raises ModelError if the configuration is not supported, or the weights do not fit it."""
        if self.sees is None or self.vision is None:
            return self.build(self.text, weights.below(self.prefix))
        hidden = self.text.get("hidden_size")
        if not isinstance(hidden, int):
            raise ModelError(f"{weights.where}: the text_config lacks hidden_size, or it is no integer")
        vision = self.sees(self.vision, hidden, weights)
        return Seeing(self.build(self.text, weights.below(self.prefix)), vision)


def family_of(config: Mapping[str, Any], where: str) -> Family:
    """Raises ModelError for a model_type that has no graph."""
    kind = config.get("model_type")
    for name in (kind, *(config.get("architectures") or ())):
        if name in _NOT_YET:
            raise ModelError(f"{where}: {_NOT_YET[name]} ({name}) is not supported yet")
    text = config.get("text_config") if kind in _SEEING else config
    if not isinstance(text, Mapping):
        raise ModelError(f"{where}: a {kind} configuration needs a text_config")
    language = text.get("model_type")
    if language not in FAMILIES:
        known = ", ".join(sorted({*FAMILIES, *_SEEING}))
        raise ModelError(f"{where}: model_type {language!r} is not supported; supported are {known}")
    if kind not in _SEEING:
        return Family(FAMILIES[language], text)
    return Family(FAMILIES[language], text, "language_model.", _SEEING[kind], config.get("vision_config"))


def load_graph(
    files: ModelFiles,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[str, float], None],
    mtp: bool = False,
) -> Graph:
    """Reads configuration and weights; `progress` is told (stage, fraction 0..1). With `mtp` the layers that predict
    further tokens are loaded too, if the model has such. Raises ModelError."""
    if files.gguf is not None:
        source = GGUFSource(Path(files.gguf))
        return build_graph(source.config(), source, dtype=dtype, device=device, progress=progress, mtp=mtp)
    config = read_json(Path(files.root) / "config.json")
    source = open_folder(Path(files.root), config)
    return build_graph(config, source, dtype=dtype, device=device, progress=progress, mtp=mtp)


def build_graph(
    config: Mapping[str, Any],
    source: Source,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[str, float], None],
    mtp: bool = False,
) -> Graph:
    """The graph that a config.json describes, with the weights of `source`. Raises ModelError if the configuration is
    not supported, or the weights do not fit it."""
    family = family_of(config, source.where)
    return family.graph(Checkpoint(source, dtype, device, progress, mtp=mtp))


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
