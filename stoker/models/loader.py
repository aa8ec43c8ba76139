"""A model's files -> a graph ready to run, and the dtype a device runs best in."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stoker.models.context import Graph
from stoker.models.graphs.llama import LlamaGraph, parse_config
from stoker.models.source import ModelError, ModelFiles, read_json
from stoker.models.weights.checkpoint import Checkpoint, Source
from stoker.models.weights.gguf import GGUFSource
from stoker.models.weights.quantization import QuantizedSource, take_scheme
from stoker.models.weights.safetensors import SafetensorsSource


def load_graph(
    files: ModelFiles, *, dtype: torch.dtype, device: torch.device, progress: Callable[[str, float], None]
) -> Graph:
    """Reads configuration and weights; `progress` is told (stage, fraction 0..1). Raises ModelError."""
    if files.gguf is not None:
        source = GGUFSource(Path(files.gguf))
        config = source.config()
    else:
        path = Path(files.root) / "config.json"
        config = read_json(path)
        if config.get("model_type") != "llama":
            raise ModelError(f"{path}: model_type {config.get('model_type')!r} is not supported yet, only llama")
        source = open_folder(Path(files.root), config)
    return LlamaGraph(parse_config(config, source.where), Checkpoint(source, dtype, device, progress))


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
