"""Matrices that stay as they were quantised: the storage kinds, their exact values, and where they may be cut.

Knows nothing of files and names. `linear` multiplies with them; this is the plain torch twin of native kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
MXFP4_GROUP = 32


class GroupCutError(ValueError):
    """A shard would not hold whole quantisation groups; the message says which and why."""


class Quantized(Protocol):
    """A matrix [out, in] in fewer bits."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """The values [out, in]: exact in float32 (one rounding for float8), rounded once more to another dtype."""
        ...

    def part(self, axis: int, index: int, count: int) -> Quantized:
        """Shard `index` of `count` equal ones along outputs (axis 0) or inputs (1). Raises GroupCutError."""
        ...

    def to(self, device: torch.device) -> Quantized: ...


@dataclass(frozen=True, slots=True)
class Float8Blocks:
    """values float8_e4m3fn [out, in], scale float32, one per block of `block` rows and columns, with smaller blocks at
    the lower and right edges: value * scale."""

    values: torch.Tensor
    scale: torch.Tensor
    block: tuple[int, int] = (128, 128)

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        scale = self.scale.float()
        for axis, size in enumerate(self.block):
            scale = scale.repeat_interleave(size, axis).narrow(axis, 0, self.values.shape[axis])
        return (self.values.float() * scale).to(dtype)

    def part(self, axis: int, index: int, count: int) -> Float8Blocks:
        values, scale = _cut(self, (self.values, self.scale), axis, index, count, self.block[axis])
        return Float8Blocks(values, scale, self.block)

    def to(self, device: torch.device) -> Float8Blocks:
        return Float8Blocks(self.values.to(device), self.scale.to(device), self.block)


@dataclass(frozen=True, slots=True)
class Float8Rows:
    """values float8_e4m3fn [out, in] and scale [out, 1], one per row: value * scale. A row may be cut, its parts keep
    its scale."""

    values: torch.Tensor
    scale: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scale.nbytes

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        return (self.values.float() * self.scale.float()).to(dtype)

    def part(self, axis: int, index: int, count: int) -> Float8Rows:
        values, scale = _cut(self, (self.values, self.scale.expand(self.shape)), axis, index, count, 1)
        return Float8Rows(values, scale[:, :1])

    def to(self, device: torch.device) -> Float8Rows:
        return Float8Rows(self.values.to(device), self.scale.to(device))


@dataclass(frozen=True, slots=True)
class Int4Groups:
    """packed int32 [out, in / 8], the lowest nibble first, and scale [out, in / group]: (nibble - 8) * scale."""

    packed: torch.Tensor
    scale: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1] * 8

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.scale.nbytes

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        nibbles = self.packed.unsqueeze(-1) >> torch.arange(0, 32, 4, dtype=torch.int32, device=self.packed.device) & 15
        grouped = (nibbles - 8).view(*self.scale.shape, -1)
        return (grouped * self.scale.float().unsqueeze(-1)).to(dtype).view(self.shape)

    def part(self, axis: int, index: int, count: int) -> Int4Groups:
        group = 1 if axis == 0 else self.shape[1] // self.scale.shape[1]
        return Int4Groups(*_cut(self, (self.packed, self.scale), axis, index, count, group))

    def to(self, device: torch.device) -> Int4Groups:
        return Int4Groups(self.packed.to(device), self.scale.to(device))


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """packed uint8 [out, in / 2] of two e2m1 numbers, the low nibble first, and exponents uint8 [out, in / 32]:
    number * 2 ** (exponent - 127), where an exponent of 255 means not a number (OCP Microscaling Formats 1.0)."""

    packed: torch.Tensor
    exponents: torch.Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1] * 2

    @property
    def nbytes(self) -> int:
        return self.packed.nbytes + self.exponents.nbytes

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        numbers = torch.tensor((*_E2M1, *(-number for number in _E2M1)), device=self.packed.device)
        nibbles = torch.stack((self.packed & 15, self.packed >> 4), dim=-1).view(*self.exponents.shape, MXFP4_GROUP)
        scale = self.exponents.view(torch.float8_e8m0fnu).float().unsqueeze(-1)
        return (numbers[nibbles.int()] * scale).to(dtype).view(self.shape)

    def part(self, axis: int, index: int, count: int) -> Mxfp4:
        group = 1 if axis == 0 else MXFP4_GROUP
        return Mxfp4(*_cut(self, (self.packed, self.exponents), axis, index, count, group))

    def to(self, device: torch.device) -> Mxfp4:
        return Mxfp4(self.packed.to(device), self.exponents.to(device))


def _cut(
    matrix: Quantized, tensors: tuple[torch.Tensor, torch.Tensor], axis: int, index: int, count: int, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shard `index` of `count` of a matrix's numbers and scales, with one scale per `group` values along `axis`."""
    size = matrix.shape[axis]
    if count > 1 and (size % count or size // count % group):
        name = ("rows", "columns")[axis]
        raise GroupCutError(f"{count} shards of {size} {name} would cut quantisation groups of {group}")
    first, second = (tensor.chunk(count, axis)[index] for tensor in tensors)
    return first, second
