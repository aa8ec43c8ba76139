"""Gated activation of an MLP whose gate and up projections are one matrix."""

from __future__ import annotations

import torch
from torch.nn import functional

from stoker.kernels.native import rows


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 * inner], gate first -> silu(gate) * up, [T, inner]."""
    if gate_up.is_contiguous() and (native := rows.library_for(gate_up, 32)):
        return rows.gate(native, native.best, gate_up)
    return silu_mul_plain(gate_up)


def silu_mul_plain(gate_up: torch.Tensor) -> torch.Tensor:
    """The same in plain torch: the native kernel's twin."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
