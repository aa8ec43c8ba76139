"""Rotary position embedding (Su et al., 2021), over all or the first dimensions of a head, in either of its layouts.

Half-split: dimension i turns with i + rotary / 2. Paired: dimension 2 i turns with 2 i + 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from stoker.kernels.native import rows


class Turns(NamedTuple):
    """What `rotate` does at T positions: cos and sin [T, 1, rotary], signed and laid out for the layout."""

    cos: torch.Tensor
    sin: torch.Tensor
    paired: bool


def turns(
    positions: torch.Tensor,
    frequencies: torch.Tensor,
    dtype: torch.dtype,
    *,
    paired: bool = False,
    magnitude: float = 1.0,
) -> Turns:
    """positions [T], frequencies [rotary / 2] float32 in radians per position. What is rotated is also scaled by
    `magnitude`. Angles are taken in float32, whatever the dtype."""
    angles = positions.to(torch.float32)[:, None] * frequencies
    cos, sin = angles.cos() * magnitude, angles.sin() * magnitude
    if paired:
        both = torch.stack((cos, cos), dim=-1).flatten(-2), torch.stack((-sin, sin), dim=-1).flatten(-2)
    else:
        both = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return Turns(both[0].unsqueeze(1).to(dtype), both[1].unsqueeze(1).to(dtype), paired)


def rotate(x: torch.Tensor, turns: Turns) -> torch.Tensor:
    """x [T, heads, size], its first `rotary` dimensions turned by their positions' angles."""
    native = rows.library_for(turns.cos, 16 if turns.paired else 32)
    if native is not None and x.dtype == turns.cos.dtype and x.stride()[1:] == (x.shape[2], 1):
        return rows.turn(native, native.best, x, turns.cos, turns.sin, paired=turns.paired)
    return rotate_plain(x, turns)


def rotate_plain(x: torch.Tensor, turns: Turns) -> torch.Tensor:
    """The same in plain torch: the native kernel's twin."""
    rotary = turns.cos.shape[-1]
    if rotary < x.shape[-1]:
        return torch.cat((rotate_plain(x[..., :rotary], turns), x[..., rotary:]), dim=-1)
    partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2) if turns.paired else x.roll(rotary // 2, dims=-1)
    return torch.addcmul(x * turns.cos, partner, turns.sin)
