"""The dense feed-forward part: a gated MLP, gate and up being one matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stoker.kernels.activation import silu_mul
from stoker.kernels.linear import Weight, linear
from stoker.models.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    gate_up: Weight
    down: Weight

    @classmethod
    def load(cls, weights: Checkpoint, name: str, hidden: int, inner: int, *, bias: bool = False) -> GatedMLP:
        """The tensors below `name`; some writers store gate and up as one already."""
        if f"{name}.gate_up_proj.weight" in weights:
            gate_up = weights.linear([f"{name}.gate_up_proj"], [2 * inner], hidden, bias=bias)
        else:
            gate_up = weights.linear([f"{name}.gate_proj", f"{name}.up_proj"], [inner, inner], hidden, bias=bias)
        return cls(gate_up, weights.linear([f"{name}.down_proj"], [hidden], inner, bias=bias))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]."""
        return linear(silu_mul(linear(x, self.gate_up)), self.down)
