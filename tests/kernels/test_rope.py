"""Rotation by complex numbers, in both layouts, of all dimensions and of some."""

from __future__ import annotations

import pytest
import torch

from stoker.kernels.rope import rotate, turns

POSITIONS = torch.tensor([0, 3, 1000])
FREQUENCIES = torch.tensor([1.0, 0.1, 0.01])


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("size", [6, 10])
def test_each_pair_turns_by_its_angle(paired: bool, size: int) -> None:
    x = torch.randn(3, 2, size, generator=torch.Generator().manual_seed(2))
    found = rotate(x, turns(POSITIONS, FREQUENCIES, torch.float32, paired=paired, magnitude=1.5))
    angles = (POSITIONS[:, None].double() * FREQUENCIES.double()).unsqueeze(1)
    turning = x[..., :6].double()
    first, second = (turning[..., ::2], turning[..., 1::2]) if paired else turning.chunk(2, dim=-1)
    turned = torch.complex(first, second) * torch.polar(torch.full_like(angles, 1.5), angles)
    parts = (turned.real, turned.imag)
    wanted = torch.stack(parts, dim=-1).flatten(-2) if paired else torch.cat(parts, dim=-1)
    torch.testing.assert_close(found[..., :6].double(), wanted, atol=1e-4, rtol=0)
    assert torch.equal(found[..., 6:], x[..., 6:])
