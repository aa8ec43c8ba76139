"""Norm, gate and rotation by the native library: what happens to rows of activations between the matrix products."""

from __future__ import annotations

import ctypes

import torch

from stoker.kernels.native.library import DTYPES, Library, load

_Pointer, _Number = ctypes.c_void_p, ctypes.c_int64


class _Norm(ctypes.Structure):
    """`Norm` of src/abi.h, field by field."""

    _fields_ = (
        *((name, _Pointer) for name in ("x", "added", "weight", "sum", "out")),
        *((name, _Number) for name in ("rows", "width", "inner", "x_stride", "dtype")),
        ("epsilon", ctypes.c_double),
    )


class _Gate(ctypes.Structure):
    """`Gate` of src/abi.h."""

    _fields_ = (
        *((name, _Pointer) for name in ("gate_up", "out")),
        *((name, _Number) for name in ("rows", "width", "dtype")),
    )


class _Turn(ctypes.Structure):
    """`Turn` of src/abi.h."""

    _fields_ = (
        *((name, _Pointer) for name in ("x", "cos", "sin", "out")),
        *((name, _Number) for name in ("tokens", "heads", "size", "rotary", "paired", "x_stride", "dtype")),
    )


def library_for(x: torch.Tensor, multiple: int = 16) -> Library | None:
    """The library, if it can compute with rows such as those of x, of a multiple of so many numbers."""
    if x.device.type != "cpu" or x.dtype not in DTYPES or x.shape[-1] % multiple or x.stride(-1) != 1:
        return None
    library = load()
    return None if isinstance(library, str) else library


def norm(library: Library, isa: str, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x [T, width] or [T, heads, width] with dense heads, weight [width] -> the same shape, dense."""
    out = x.new_empty(x.shape)
    inner = x.shape[1] if x.dim() == 3 else 1
    width = x.shape[-1]
    assert x.dim() == 2 or x.stride(1) == width
    args = _Norm(
        x.data_ptr(),
        None,
        weight.data_ptr(),
        None,
        out.data_ptr(),
        len(x) * inner,
        width,
        inner,
        x.stride(0),
        DTYPES[x.dtype],
        epsilon,
    )
    library.functions.stoker_norm(library.isas[isa], ctypes.byref(args))
    return out


def add_norm(
    library: Library, isa: str, x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and added [T, width], dense, weight [width] -> (x + added, its norm)."""
    total, out = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[1]
    args = _Norm(
        x.data_ptr(),
        added.data_ptr(),
        weight.data_ptr(),
        total.data_ptr(),
        out.data_ptr(),
        len(x),
        width,
        1,
        width,
        DTYPES[x.dtype],
        epsilon,
    )
    library.functions.stoker_norm(library.isas[isa], ctypes.byref(args))
    return total, out


def gate(library: Library, isa: str, gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 * width], dense, gate first -> silu(gate) * up, [T, width]."""
    rows, both = gate_up.shape
    out = gate_up.new_empty((rows, both // 2))
    args = _Gate(gate_up.data_ptr(), out.data_ptr(), rows, both // 2, DTYPES[gate_up.dtype])
    library.functions.stoker_gate(library.isas[isa], ctypes.byref(args))
    return out


def turn(
    library: Library, isa: str, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, paired: bool
) -> torch.Tensor:
    """x [T, heads, size] with dense heads, cos and sin [T, 1, rotary], dense -> [T, heads, size], dense."""
    out = x.new_empty(x.shape)
    tokens, heads, size = x.shape
    args = _Turn(
        x.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
        out.data_ptr(),
        tokens,
        heads,
        size,
        cos.shape[-1],
        paired,
        x.stride(0),
        DTYPES[x.dtype],
    )
    library.functions.stoker_turn(library.isas[isa], ctypes.byref(args))
    return out
