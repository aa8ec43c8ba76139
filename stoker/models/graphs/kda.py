"""Kimi Delta Attention (Kimi Team, 2025): a memory of fixed size per head instead of keys and values of all tokens.

Queries, keys and values pass a short convolution; the memory forgets by channel, at a rate that each token sets anew
(the gated delta rule, `kernels/delta.py`), and what is recalled is normed and gated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from stoker.kernels.linear import Weight, linear
from stoker.kernels.norm import rms_norm
from stoker.kernels.rope import Turns
from stoker.models.context import ForwardContext, RecurrentSpec
from stoker.models.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class DeltaShape:
    """`heads` of `size` dimensions each in queries, keys and values; convolutions reach over `kernel` tokens."""

    heads: int
    size: int
    kernel: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class DeltaAttention:
    """`inputs` are all matrices that read the hidden state, one above another: queries, keys, values, the bottlenecks
    of decay and output gate, beta. `rate` [heads, 1] and `bias` [heads, size], both float32, make a decay of the
    first."""

    shape: DeltaShape
    inputs: Weight
    convolution: torch.Tensor
    decay_up: Weight
    rate: torch.Tensor
    bias: torch.Tensor
    gate_up: Weight
    norm: torch.Tensor
    output: Weight

    @classmethod
    def load(cls, weights: Checkpoint, name: str, hidden: int, shape: DeltaShape) -> DeltaAttention:
        """The tensors below `name`."""
        heads, size = shape.heads, shape.size
        width = heads * size
        kernels = [
            weights.tensor(f"{name}.{which}_conv1d.weight", (width, 1, shape.kernel)).squeeze(1) for which in "qkv"
        ]
        return cls(
            shape,
            weights.linear(
                [f"{name}.{which}_proj" for which in ("q", "k", "v", "f_a", "g_a", "b")],
                [width, width, width, size, size, heads],
                hidden,
            ),
            torch.cat(kernels),
            weights.linear([f"{name}.f_b_proj"], [width], size),
            weights.tensor(f"{name}.A_log", (1, 1, heads, 1), torch.float32).view(heads, 1).exp(),
            weights.tensor(f"{name}.dt_bias", (width,), torch.float32).view(heads, size),
            weights.linear([f"{name}.g_b_proj"], [width], size),
            weights.tensor(f"{name}.o_norm.weight", (size,), torch.float32),
            weights.linear([f"{name}.o_proj"], [hidden], width),
        )

    @property
    def cache(self) -> RecurrentSpec:
        heads, size = self.shape.heads, self.shape.size
        return RecurrentSpec(channels=3 * heads * size, taps=self.shape.kernel - 1, heads=heads, key=size, value=size)

    def __call__(self, x: torch.Tensor, turns: Turns, context: ForwardContext, layer: int) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; positions play no part."""
        tokens, heads, size = len(x), self.shape.heads, self.shape.size
        qkv, decay, gate, beta = linear(x, self.inputs).split([3 * heads * size, size, size, heads], dim=1)
        state = context.recurrent(layer)
        q, k, v = functional.silu(state.convolve(qkv, self.convolution)).view(tokens, 3, heads, size).unbind(1)
        rise = linear(decay, self.decay_up).view(tokens, heads, size).float() + self.bias
        recalled = state.recall(q, k, v, -self.rate * functional.softplus(rise), beta.float().sigmoid())
        gate = linear(gate, self.gate_up).view(tokens, heads, size)
        normed = rms_norm(recalled.float(), self.norm, self.shape.epsilon) * gate.float().sigmoid()
        return linear(normed.to(x.dtype).view(tokens, -1), self.output)
