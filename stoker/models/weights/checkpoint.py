"""What a graph loads its weights from: tensors by their Hugging Face names, checked, converted and fused.

A `Source` reads one file format. `Checkpoint` asks it for tensors and accounts for them, so that a tensor that is
missing, has another shape or is left over is an error that names it, never a model that answers nonsense.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, Self

import torch

from stoker.kernels.experts import ExpertWeights
from stoker.kernels.linear import Int4, Weight
from stoker.kernels.quantized import Quantized
from stoker.models.source import ModelError
from stoker.models.weights.meter import LoadMeter


class MissingTensorError(ModelError):
    """The checkpoint lacks the tensor `name`."""

    def __init__(self, where: str, name: str) -> None:
        super().__init__(f"{where} lacks the tensor {name}")
        self.name = name


class Codes(NamedTuple):
    """A matrix held as 4-bit numbers: codes uint8 [out, in] in 0..15, scale and minimum float32 [out, in / 32],
    value = code * scale + minimum."""

    codes: torch.Tensor
    scale: torch.Tensor
    minimum: torch.Tensor


class Source(Protocol):
    """The tensors of one checkpoint. `where` names it in messages."""

    @property
    def where(self) -> str: ...

    @property
    def names(self) -> frozenset[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def size(self, name: str) -> int:
        """Bytes that the tensor takes on disk."""
        ...

    def check(self, name: str) -> None:
        """Raises ModelError if the tensor could not be read, as far as headers tell."""
        ...

    def fetch(self, name: str, idle: Callable[[], None]) -> None:
        """Returns when the tensor's bytes are at hand; `idle` is called now and then while that lasts."""
        ...

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The values on the CPU, of `shape(name)`. Raises ModelError for a storage type it cannot read."""
        ...

    def codes(self, name: str) -> Codes | None:
        """The same values as 4-bit codes, where the checkpoint stores them so and dense ones are wanted too."""
        ...

    def quantized(self, name: str) -> Quantized | None:
        """The matrix as it is stored, where it stays in that form in memory."""
        ...


class Checkpoint:
    """Gives each tensor of `source` once, in `dtype` on `device`, and reports progress as (stage, fraction). `mtp` asks
    a graph to take the layers that predict further tokens too."""

    def __init__(
        self,
        source: Source,
        dtype: torch.dtype,
        device: torch.device,
        progress: Callable[[str, float], None],
        *,
        mtp: bool = False,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self.mtp = mtp
        self._prefix = ""
        self._source = source
        self._meter = LoadMeter(sum(map(source.size, source.names)), progress)
        self._left = set(source.names)

    @property
    def where(self) -> str:
        """Names the checkpoint in messages."""
        return self._source.where

    def below(self, prefix: str) -> Self:
        """The same checkpoint, asked for names below `prefix`: where a model is one part of a larger one. What either
        gives counts for both."""
        part = copy.copy(self)
        part._prefix = self._prefix + prefix
        return part

    def __contains__(self, name: str) -> bool:
        return self._prefix + name in self._source.names

    def tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> torch.Tensor:
        """One tensor as it is stored, in another dtype than the checkpoint's if asked."""
        stored = self._claim(name, shape)
        return self._source.dense(stored, dtype or self.dtype).to(self.device)

    def linear(self, names: Sequence[str], rows: Sequence[int], columns: int, *, bias: bool = False) -> Weight:
        """The matrices `name.weight` [rows_i, columns] one above another as one weight, with their biases."""
        weights = [self._claim(f"{name}.weight", (count, columns)) for name, count in zip(names, rows, strict=True)]
        biases = [self.tensor(f"{n}.bias", (count,)) for n, count in zip(names, rows, strict=True)] if bias else []
        joined_bias = _joined(biases) if bias else None
        parts = [part for part in map(self._source.quantized, weights) if part is not None]
        if len(parts) == len(weights):
            return Weight(None, joined_bias, quantized=tuple(part.to(self.device) for part in parts))
        dense = _joined([self._source.dense(name, self.dtype) for name in weights]).to(self.device)
        return Weight.of(dense, joined_bias, self._int4(weights, sum(rows), columns))

    def experts(self, names: Sequence[Sequence[str]], rows: Sequence[int], columns: int) -> ExpertWeights:
        """`linear` for each expert: `names[e]` are the matrices that make up expert e's, `rows` their heights."""
        return ExpertWeights(tuple(self.linear(expert, rows, columns) for expert in names))

    def ignore(self, pattern: str) -> None:
        """Tensors that this graph leaves out on purpose: those whose name in the file matches the regular expression
        as a whole."""
        known = re.compile(pattern)
        left_out = {name for name in self._left if known.fullmatch(name)}
        self._left -= left_out
        self._meter.skip(sum(map(self._source.size, left_out)))

    def finish(self) -> None:
        """Raises ModelError if tensors are left that nothing asked for."""
        if self._left:
            some = ", ".join(sorted(self._left)[:3])
            raise ModelError(
                f"{self._source.where} holds {len(self._left)} tensors that this model's graph does not use ({some}): "
                "the configuration does not describe these weights"
            )
        self._meter.finish()

    def _claim(self, name: str, shape: tuple[int, ...]) -> str:
        """The stored name of a tensor that must be there in this shape."""
        name = self._prefix + name
        if name not in self._source.names:
            raise MissingTensorError(self._source.where, name)
        found = self._source.shape(name)
        if found != shape:
            raise ModelError(
                f"{self._source.where}: the tensor {name} has shape {list(found)}, the configuration says {list(shape)}"
            )
        if name in self._left:
            self._left.remove(name)
            self._source.fetch(name, self._meter.tell)
            self._meter.add(self._source.size(name))
        return name

    def _int4(self, names: list[str], rows: int, columns: int) -> Int4 | None:
        if self.dtype != torch.bfloat16 or self.device.type != "cpu" or not Int4.fits(rows, columns):
            return None
        parts = [codes for codes in map(self._source.codes, names) if codes is not None]
        if len(parts) < len(names):
            return None
        codes, scale, minimum = (_joined(list(column)) for column in zip(*parts, strict=True))
        return Int4.pack(codes, scale, minimum)


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
