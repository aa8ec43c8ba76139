"""Rotary position embedding (Su et al., 2021) in the half-split layout: dimension i turns with i + head_dim / 2."""

from __future__ import annotations

import torch


def rotations(
    positions: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """positions [T], frequencies [head_dim / 2] float32 in radians per position -> (cos, sin), both [T, 1, head_dim].

    The first half of sin is negated, which is what `rotate` wants. Angles are taken in float32, whatever the dtype.
    """
    angles = positions.to(torch.float32)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return (
        torch.cat((cos, cos), dim=-1).unsqueeze(1).to(dtype),
        torch.cat((-sin, sin), dim=-1).unsqueeze(1).to(dtype),
    )


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x [T, heads, head_dim] turned by its positions' angles."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, dims=-1), sin)
