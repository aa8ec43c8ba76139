"""Both layouts of a weight give the same product, at every number of rows where the choice between them changes."""

from __future__ import annotations

import pytest
import torch

from stoker.kernels.linear import Int4, Weight, linear

OUT, IN = 48, 96


def _exact_in_four_bits() -> tuple[torch.Tensor, Int4]:
    random = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (OUT, IN), generator=random, dtype=torch.uint8)
    # powers of two, so that neither layout rounds the weight
    scale = 2.0 ** -torch.randint(3, 6, (OUT, IN // 32), generator=random).float()
    minimum = -8 * scale
    dense = codes * scale.repeat_interleave(32, 1) + minimum.repeat_interleave(32, 1)
    return dense, Int4.pack(codes, scale, minimum)


@pytest.mark.parametrize("rows", [1, 2, 8, 9, 32, 33, 70])
@pytest.mark.parametrize("biased", [False, True])
def test_the_layout_does_not_change_the_product(rows: int, biased: bool) -> None:
    dense, int4 = _exact_in_four_bits()
    random = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, IN, generator=random).bfloat16()
    bias = torch.randn(OUT, generator=random).bfloat16() if biased else None
    expected = x.double() @ dense.double().T + (0 if bias is None else bias.double())
    for weight in (Weight.of(dense.bfloat16(), bias), Weight.of(dense.bfloat16(), bias, int4)):
        torch.testing.assert_close(linear(x, weight).double(), expected, atol=0.02, rtol=0.01)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_float32_is_exact_to_rounding(rows: int) -> None:
    dense, _ = _exact_in_four_bits()
    x = torch.randn(rows, IN, generator=torch.Generator().manual_seed(2))
    expected = (x.double() @ dense.double().T).float()
    torch.testing.assert_close(linear(x, Weight.of(dense)), expected, atol=1e-5, rtol=1e-5)
