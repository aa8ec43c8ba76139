"""A checkpoint that is only described: types and shapes, and tensors on torch's meta device in place of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

import torch

from stoker.kernels.quantized import Quantized
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Codes
from stoker.models.weights.header import BITS, check_readable

_KINDS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu, "BOOL": torch.bool,
}  # fmt: skip


class DescribedSource:
    """`tensors` are type and shape by name, as headers of safetensors files have them."""

    def __init__(self, where: str, tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        self.where = where
        self._tensors = tensors
        self.names = frozenset(tensors)
        self._sizes = {name: self._size(name) for name in tensors}

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name][1]

    def size(self, name: str) -> int:
        return self._sizes[name]

    def _size(self, name: str) -> int:
        kind, shape = self._tensors[name]
        if kind not in BITS:
            raise ModelError(f"{self.where}: the tensor {name} has the type {kind}, which is not known")
        return prod(shape) * BITS[kind] // 8

    def check(self, name: str) -> None:
        check_readable(self.where, name, self.kind(name))

    def fetch(self, name: str, idle: Callable[[], None]) -> None:
        return None

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        self.check(name)
        return torch.empty(self.shape(name), dtype=dtype, device="meta")

    def kind(self, name: str) -> str:
        return self._tensors[name][0]

    def stored(self, name: str) -> torch.Tensor:
        kind, shape = self._tensors[name]
        if kind not in _KINDS:
            raise ModelError(f"{self.where}: the tensor {name} has the type {kind}, which is not supported")
        return torch.empty(shape, dtype=_KINDS[kind], device="meta")

    def codes(self, name: str) -> Codes | None:
        return None

    def quantized(self, name: str) -> Quantized | None:
        return None
