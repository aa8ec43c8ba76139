"""Matrix times a few or many token rows, the weight held in the layouts that are fast for them, or as it was quantised.

Owns the weight layouts and the choice between them; knows nothing of files or of what a weight is for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from stoker.kernels.quantized import Quantized

INT4_GROUP = 32
_int4_pack = torch.ops.aten._convert_weight_to_int4pack_for_cpu.default
_int4_matmul = torch.ops.aten._weight_int4pack_mm_for_cpu.default
_INT4_ROWS = 8  # up to here reading a quarter of the bytes beats the matrix units (measured: 3.5x at 1 row, 1.4x at 8)
_block = torch.ops.mkldnn._reorder_linear_weight
_blocked_matmul = torch.ops.mkldnn._linear_pointwise
_BLOCK_ROWS = 32  # the number of rows that oneDNN chooses the blocking for; others run on it nearly as fast


@dataclass(frozen=True, slots=True)
class Int4:
    """A weight in 4-bit codes with a scale and an offset per group of 32 inputs, in torch's packed CPU layout."""

    packed: torch.Tensor
    scales_and_zeros: torch.Tensor

    @staticmethod
    def fits(rows: int, columns: int) -> bool:
        """Whether the packed layout can hold a matrix [rows, columns]."""
        return rows % 16 == 0 and columns % INT4_GROUP == 0

    @staticmethod
    def pack(codes: torch.Tensor, scale: torch.Tensor, minimum: torch.Tensor) -> Int4:
        """codes uint8 [out, in] in 0..15, scale and minimum float32 [out, in / 32]: weight = code * scale + minimum."""
        packed = _int4_pack(codes.int(), 1)
        # the kernel computes (code - 8) * scale + zero
        both = torch.stack((scale, minimum + 8 * scale), dim=-1).transpose(0, 1)
        return Int4(packed, both.to(torch.bfloat16).contiguous())


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [out, in] and its bias [out].

    `dense` is the plain matrix, or `blocked` the same in oneDNN's own layout: with the plain one every product first
    reorders it, which at 32 rows costs as much again as the product. `int4` is the same matrix once more, present only
    where it is exact in 4 bits and pays. `Weight.of` chooses; a matrix that is read in other ways too stays plain.
    One that was published in fewer bits is held only so: `quantized` are its parts, one above another.
    """

    dense: torch.Tensor | None
    bias: torch.Tensor | None = None
    blocked: torch.Tensor | None = None
    int4: Int4 | None = None
    quantized: tuple[Quantized, ...] = ()

    @staticmethod
    def of(matrix: torch.Tensor, bias: torch.Tensor | None = None, int4: Int4 | None = None) -> Weight:
        """Takes the layout that is fastest where `matrix` is; for a blocked one the caller should let `matrix` go."""
        if matrix.device.type == "cpu" and matrix.dtype == torch.bfloat16 and torch.backends.mkldnn.is_available():
            return Weight(None, bias, _block(matrix, _BLOCK_ROWS), int4)
        return Weight(matrix, bias, None, int4)


def linear(x: torch.Tensor, weight: Weight) -> torch.Tensor:
    """x [T, in] -> [T, out] in the dtype of x, contiguous."""
    if weight.int4 is not None and x.shape[0] <= _INT4_ROWS:
        y = _int4_matmul(x, weight.int4.packed, INT4_GROUP, weight.int4.scales_and_zeros)
        return y if weight.bias is None else y.add_(weight.bias)
    if weight.quantized:
        products = [functional.linear(x, part.dense(x.dtype)) for part in weight.quantized]
        y = products[0] if len(products) == 1 else torch.cat(products, dim=1)
        return y if weight.bias is None else y.add_(weight.bias)
    if weight.blocked is not None:
        return _blocked_matmul(x, weight.blocked, weight.bias, "none", [], "")
    assert weight.dense is not None
    return functional.linear(x, weight.dense, weight.bias)
