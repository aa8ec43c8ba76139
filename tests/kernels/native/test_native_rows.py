"""Norm, gate and rotation: the native kernels against their twins in float32, on every instruction set of this host."""

from __future__ import annotations

import pytest
import torch

from stoker.kernels.activation import silu_mul, silu_mul_plain
from stoker.kernels.native import rows
from stoker.kernels.native.library import Library
from stoker.kernels.norm import add_rms_norm, rms_norm, rms_norm_plain
from stoker.kernels.rope import Turns, rotate, rotate_plain, turns

EPSILON = 1e-5
# the twin computes in float32 from the same numbers, so what is left is one rounding to the result's dtype
TOLERANCE = {torch.float32: (1e-5, 2e-6), torch.bfloat16: (1e-6, 2**-8)}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCE))
COUNTS = pytest.mark.parametrize("tokens", [1, 3, 33, 200])


def near(found: torch.Tensor, expected: torch.Tensor) -> None:
    absolute, relative = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected, atol=absolute, rtol=relative)


def draw(*shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
    return (torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(dtype)


@DTYPES
@COUNTS
@pytest.mark.parametrize("width", [16, 48, 576, 4096])
def test_norm(native: Library, tokens: int, width: int, dtype: torch.dtype) -> None:
    x, weight = draw(tokens, width, dtype=dtype, scale=3), draw(width, dtype=dtype)
    for isa in native.isas:
        near(rows.norm(native, isa, x, weight, EPSILON), rms_norm_plain(x.float(), weight.float(), EPSILON))


@DTYPES
def test_norm_of_heads_within_a_wider_row(native: Library, dtype: torch.dtype) -> None:
    qkv, weight = draw(7, 9, 32, dtype=dtype), draw(32, dtype=dtype)
    part = qkv[:, 2:6]
    for isa in native.isas:
        near(rows.norm(native, isa, part, weight, EPSILON), rms_norm_plain(part.float(), weight.float(), EPSILON))


@DTYPES
@COUNTS
def test_norm_of_a_sum(native: Library, tokens: int, dtype: torch.dtype) -> None:
    x, added, weight = draw(tokens, 96, dtype=dtype), draw(tokens, 96, dtype=dtype, scale=2), draw(96, dtype=dtype)
    for isa in native.isas:
        total, normed = rows.add_norm(native, isa, x, added, weight, EPSILON)
        assert torch.equal(total, x + added), "the sum is what torch's addition gives"
        near(normed, rms_norm_plain(total.float(), weight.float(), EPSILON))


@DTYPES
@COUNTS
@pytest.mark.parametrize("width", [16, 1536, 20_000])
def test_gate(native: Library, tokens: int, width: int, dtype: torch.dtype) -> None:
    gate_up = draw(tokens, 2 * width, dtype=dtype, scale=4)
    gate_up[0, :4] = torch.tensor([300.0, -300.0, 0.0, -90.0])
    for isa in native.isas:
        near(rows.gate(native, isa, gate_up), silu_mul_plain(gate_up.float()))


@DTYPES
@COUNTS
@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize(("size", "rotary"), [(64, 64), (96, 32), (128, 96)])
def test_rotation(native: Library, tokens: int, size: int, rotary: int, paired: bool, dtype: torch.dtype) -> None:
    x = draw(tokens, 7, size, dtype=dtype)[:, 1:5]
    turning = turns(torch.arange(tokens) + 1000, draw(rotary // 2, dtype=torch.float32).abs(), dtype, paired=paired)
    exact = Turns(turning.cos.float(), turning.sin.float(), paired)
    for isa in native.isas:
        found = rows.turn(native, isa, x, turning.cos, turning.sin, paired=paired)
        near(found, rotate_plain(x.float(), exact))
        assert torch.equal(found[..., rotary:], x[..., rotary:])


def test_what_is_not_a_number_stays_in_its_row(native: Library) -> None:
    x = draw(3, 64, dtype=torch.bfloat16)
    x[1, 5] = float("nan")
    x[2, 5] = float("inf")
    weight = torch.ones(64, dtype=torch.bfloat16)
    for isa in native.isas:
        normed = rows.norm(native, isa, x, weight, EPSILON)
        assert normed[0].isfinite().all()
        assert normed[1].isnan().all()
        assert normed[2, 5].isnan()
        gated = rows.gate(native, isa, x)
        assert gated[0].isfinite().all()
        assert gated[1, 5].isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("width", [1, 12, 16, 30, 32])
def test_whatever_the_kernels_do_not_take_is_torchs(width: int, dtype: torch.dtype) -> None:
    """Odd widths, other dtypes, transposed and broadcast rows: the same function, the same answer."""
    x, weight = draw(6, width, dtype=dtype), draw(width, dtype=dtype)
    both = draw(6, 2 * width, dtype=dtype)
    absolute, relative = (2e-2, 2**-7) if dtype.itemsize == 2 else (1e-5, 1e-5)

    def same(found: torch.Tensor, expected: torch.Tensor) -> None:
        torch.testing.assert_close(found.double(), expected.double(), atol=absolute, rtol=relative)

    for rows_of in (x, x[::2], x[:1].expand(6, width), draw(width, 6, dtype=dtype).T):
        same(rms_norm(rows_of, weight, EPSILON), rms_norm_plain(rows_of.double(), weight.double(), EPSILON))
        total, normed = add_rms_norm(rows_of, rows_of, weight, EPSILON)
        same(total, rows_of.double() * 2)
        same(normed, rms_norm_plain(total.double(), weight.double(), EPSILON))
    same(silu_mul(both), silu_mul_plain(both.double()))
    same(silu_mul(both.T.contiguous().T), silu_mul_plain(both.double()))
    if width % 2 == 0:
        turning = turns(torch.arange(6), torch.rand(width // 2), dtype)
        exact = Turns(turning.cos.double(), turning.sin.double(), paired=False)
        heads = draw(6, 4, width, dtype=dtype)
        for some in (heads, heads[:, ::2], heads.transpose(0, 1)[:, :6].expand(4, 6, width)[:1].expand(6, 6, width)):
            same(rotate(some, turning), rotate_plain(some.double(), exact))
