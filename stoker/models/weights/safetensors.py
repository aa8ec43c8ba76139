"""A folder of safetensors files, memory-mapped: one file, or shards with an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from stoker.kernels.quantized import Quantized
from stoker.models.source import ModelError, shard_names
from stoker.models.weights.checkpoint import Codes

_READABLE = {"F64", "F32", "F16", "BF16"}


class SafetensorsSource:
    """The checkpoint in `root`."""

    def __init__(self, root: Path) -> None:
        self.where = str(root)
        self._files: dict[str, Any] = {}
        for shard in shard_names(root):
            try:
                file = safe_open(root / shard, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelError(
                    f"cannot read {root / shard} ({error}): it may be truncated, fetch it again"
                ) from error
            self._files.update(dict.fromkeys(file.keys(), file))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._files[name].get_slice(name).get_shape())

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        file = self._files[name]
        stored = file.get_slice(name).get_dtype()
        if stored not in _READABLE:
            raise ModelError(
                f"{self.where}: the tensor {name} is stored as {stored}, which needs a quantization_config "
                "in config.json that says what it means"
            )
        return file.get_tensor(name).to(dtype)

    def stored(self, name: str) -> torch.Tensor:
        """The tensor as it is in the file, memory-mapped."""
        return self._files[name].get_tensor(name)

    def codes(self, name: str) -> Codes | None:
        return None

    def quantized(self, name: str) -> Quantized | None:
        return None
