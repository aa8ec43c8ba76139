"""The experts of a mixture: each token through the few gated MLPs that were chosen for it, their outputs weighed.

Owns the order of the work; who is chosen is the router's business, what a product costs the linear kernel's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stoker.kernels.activation import silu_mul
from stoker.kernels.linear import Weight, linear


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """The same matrix [out, in] of every expert of a layer, each in the layout that its storage is fast in."""

    each: tuple[Weight, ...]


def mix_experts(
    x: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor, gate_up: ExpertWeights, down: ExpertWeights
) -> torch.Tensor:
    """x [T, hidden], shares float32 and chosen int64 [T, k], gate_up [2 * inner, hidden], down [hidden, inner] of each
    expert -> [T, hidden]: the sum of share * expert(x) over a token's k experts.

    Every expert runs once, on all its tokens. A token's sum is taken in the order of its choices, so it does not depend
    on what else is in the batch.
    """
    tokens, k = chosen.shape
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=len(gate_up.each)).tolist()
    gathered = x.index_select(0, order // k)
    outputs = torch.empty_like(gathered)
    begin = 0
    for count, expert_gate_up, expert_down in zip(counts, gate_up.each, down.each, strict=True):
        if count:
            end = begin + count
            outputs[begin:end] = linear(silu_mul(linear(gathered[begin:end], expert_gate_up)), expert_down)
            begin = end
    placed = torch.empty_like(outputs).index_copy_(0, order, outputs).view(tokens, k, -1)
    return (placed * shares.unsqueeze(-1)).sum(dim=1).to(x.dtype)
