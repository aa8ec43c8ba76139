"""A mixture of experts against the sum written out, and its independence of the batch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from stoker.kernels.experts import ExpertWeights, mix_experts
from stoker.kernels.linear import Weight

HIDDEN, INNER, EXPERTS, CHOSEN = 24, 40, 7, 3


class Layer:
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        random = torch.Generator().manual_seed(5)
        self.gate_up = torch.randn(EXPERTS, 2 * INNER, HIDDEN, generator=random).to(dtype)
        self.down = torch.randn(EXPERTS, HIDDEN, INNER, generator=random).to(dtype)
        self.x = torch.randn(30, HIDDEN, generator=random).to(dtype)
        self.shares = torch.rand(30, CHOSEN, generator=random)
        # expert 4 is never chosen
        self.chosen = torch.stack(
            [torch.tensor([0, 1, 2, 3, 5, 6])[torch.randperm(6, generator=random)[:CHOSEN]] for _ in range(30)]
        )

    def mix(self, rows: slice) -> torch.Tensor:
        experts = [ExpertWeights(tuple(map(Weight.of, matrices))) for matrices in (self.gate_up, self.down)]
        return mix_experts(self.x[rows], self.shares[rows], self.chosen[rows], *experts)


def test_sum_of_weighed_experts() -> None:
    layer = Layer()
    found = layer.mix(slice(None))
    for token, x in enumerate(layer.x):
        expected = torch.zeros(HIDDEN)
        for share, expert in zip(layer.shares[token], layer.chosen[token], strict=True):
            gate, up = (layer.gate_up[expert] @ x).chunk(2)
            expected += share * (layer.down[expert] @ (functional.silu(gate) * up))
        torch.testing.assert_close(found[token], expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_alone_is_what_it_is_in_a_batch(dtype: torch.dtype) -> None:
    layer = Layer(dtype)
    together = layer.mix(slice(None))
    assert together.dtype == dtype
    for token in range(30):
        torch.testing.assert_close(together[token], layer.mix(slice(token, token + 1))[0], atol=1e-4, rtol=1e-5)
