"""Paged attention by the native library: the arguments of one batch, made once for all layers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from stoker.kernels.native.library import DTYPES, Library

LARGEST_HEAD = 256

_POINTERS = ("q", "k", "v", "out", "keys", "values", "slots", "starts", "lengths", "tables", "which")
_NUMBERS = (
    "sequences",
    "tokens",
    "heads",
    "kv_heads",
    "size",
    "block_size",
    "table_stride",
    "q_stride",
    "k_stride",
    "v_stride",
    "slot_stride",
    "dtype",
)


class _Attend(ctypes.Structure):
    """`Attend` of src/abi.h, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _NUMBERS),
        ("scale", ctypes.c_double),
    )


class NativeAttention:
    """Attention of one ragged batch for those of its sequences that `which` names; all new tokens are written.

    slots [T] and tables [B, P] int64 on the CPU, starts B + 1 borders within T, lengths B.
    """

    def __init__(
        self,
        library: Library,
        isa: str,
        slots: torch.Tensor,
        starts: Sequence[int],
        lengths: Sequence[int],
        tables: torch.Tensor,
        block_size: int,
        which: Sequence[int],
    ) -> None:
        self._run = library.functions.stoker_attend
        self._isa = library.isas[isa]
        arrays = [np.array(values, dtype=np.int64) for values in (starts, lengths, which)]
        slots, tables = slots.contiguous(), tables.contiguous()
        self._kept = (*arrays, slots, tables)  # the structure holds addresses only
        self._args = _Attend(
            slots=slots.data_ptr(),
            tables=tables.data_ptr(),
            starts=arrays[0].ctypes.data,
            lengths=arrays[1].ctypes.data,
            which=arrays[2].ctypes.data,
            sequences=len(which),
            tokens=len(slots),
            block_size=block_size,
            table_stride=tables.shape[1],
        )
        self._reference = ctypes.byref(self._args)

    @staticmethod
    def takes(q: torch.Tensor, keys: torch.Tensor) -> bool:
        """Whether the kernel can compute with tensors such as these; otherwise torch must."""
        size = q.shape[-1]
        return q.device.type == "cpu" and q.dtype == keys.dtype and q.dtype in DTYPES and _fits(size)

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        scale: float,
    ) -> None:
        """Write k, v [T, kv_heads, size] to keys, values [slots, kv_heads, size] and the result for q [T, heads, size]
        to out [T, heads, size]; rows of other sequences are left as they are."""
        args = self._args
        args.heads, args.size = q.shape[1], q.shape[2]
        args.kv_heads = keys.shape[1]
        args.q, args.q_stride = _rows(q)
        args.k, args.k_stride = _rows(k)
        args.v, args.v_stride = _rows(v)
        args.keys, args.slot_stride = _rows(keys)
        args.values, stride = _rows(values)
        assert stride == args.slot_stride
        args.out, _ = _rows(out)
        args.dtype = DTYPES[q.dtype]
        args.scale = scale
        self._run(self._isa, self._reference)


def _fits(size: int) -> bool:
    return size % 16 == 0 and size <= LARGEST_HEAD


def _rows(tensor: torch.Tensor) -> tuple[int, int]:
    """Address of [rows, heads, size] and elements from row to row; the heads of a row must be dense."""
    row, head, element = tensor.stride()
    assert element == 1
    assert head == tensor.shape[2] or tensor.shape[1] == 1
    return tensor.data_ptr(), row
