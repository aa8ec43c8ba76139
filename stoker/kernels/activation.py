"""Gated activation of an MLP whose gate and up projections are one matrix."""

from __future__ import annotations

import torch
from torch.nn import functional


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up [T, 2 * inner], gate first -> silu(gate) * up, [T, inner]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate).mul_(up)
