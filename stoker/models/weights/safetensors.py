"""A folder of safetensors files, memory-mapped: one file, or shards with an index."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from stoker.kernels.quantized import Quantized
from stoker.models.source import ModelError, shard_names
from stoker.models.weights.checkpoint import Codes
from stoker.models.weights.header import check_readable, read_folder
from stoker.models.weights.readahead import ReadAhead


class SafetensorsSource:
    """The checkpoint in `root`."""

    def __init__(self, root: Path) -> None:
        self.where = str(root)
        self._tensors = read_folder(root)
        self.names = frozenset(self._tensors)
        self._files: dict[Path, Any] = {}
        for file in (root / name for name in shard_names(root)):
            try:
                self._files[file] = safe_open(file, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelError(f"cannot read {file} ({error}): it may be truncated, fetch it again") from error
        self._ahead = ReadAhead(list(self._files))

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def size(self, name: str) -> int:
        return self._tensors[name].end - self._tensors[name].begin

    def check(self, name: str) -> None:
        check_readable(self.where, name, self.kind(name))

    def fetch(self, name: str, idle: Callable[[], None]) -> None:
        stored = self._tensors[name]
        try:
            self._ahead.need(stored.file, stored.begin, stored.end, idle)
        except OSError as error:
            raise ModelError(f"cannot read {stored.file}: {error.strerror}") from error

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        self.check(name)
        return self.stored(name).to(dtype)

    def kind(self, name: str) -> str:
        return self._tensors[name].dtype

    def stored(self, name: str) -> torch.Tensor:
        """The tensor as it is in the file, memory-mapped."""
        return self._files[self._tensors[name].file].get_tensor(name)

    def codes(self, name: str) -> Codes | None:
        return None

    def quantized(self, name: str) -> Quantized | None:
        return None
