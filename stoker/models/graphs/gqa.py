"""Grouped-query attention (Ainslie et al., 2023): heads that share keys and values in groups, normed or not."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stoker.kernels.linear import Weight, linear
from stoker.kernels.norm import rms_norm
from stoker.kernels.rope import Turns, rotate
from stoker.models.context import ForwardContext, PagedSpec
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class Grouping:
    """Shape of one layer's attention. `normed`: queries and keys pass a norm over each head before they turn."""

    heads: int
    kv_heads: int
    size: int
    bias: bool
    output_bias: bool
    normed: bool
    epsilon: float

    def check(self, where: str, rotary: int) -> None:
        """Raises ModelError if the heads do not divide, or the `rotary` dimensions do not pair."""
        if self.heads % self.kv_heads or rotary % 2:
            raise ModelError(
                f"{where}: {self.heads} heads of {self.size} dimensions ({rotary} of them turned) over {self.kv_heads} "
                "KV heads: the heads must divide evenly, the turned dimensions be even"
            )


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """q, k and v are one matrix."""

    shape: Grouping
    qkv: Weight
    output: Weight
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None

    @classmethod
    def load(cls, weights: Checkpoint, name: str, hidden: int, shape: Grouping) -> GroupedAttention:
        """The tensors below `name`."""
        q_rows, kv_rows = shape.heads * shape.size, shape.kv_heads * shape.size
        return cls(
            shape,
            weights.linear(
                [f"{name}.q_proj", f"{name}.k_proj", f"{name}.v_proj"],
                [q_rows, kv_rows, kv_rows],
                hidden,
                bias=shape.bias,
            ),
            weights.linear([f"{name}.o_proj"], [hidden], q_rows, bias=shape.output_bias),
            weights.tensor(f"{name}.q_norm.weight", (shape.size,)) if shape.normed else None,
            weights.tensor(f"{name}.k_norm.weight", (shape.size,)) if shape.normed else None,
        )

    @property
    def cache(self) -> PagedSpec:
        return PagedSpec(kv_heads=self.shape.kv_heads, head_dim=self.shape.size)

    def __call__(self, x: torch.Tensor, turns: Turns, context: ForwardContext, layer: int) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; `turns` are those of the batch's positions."""
        heads, kv_heads, size = self.shape.heads, self.shape.kv_heads, self.shape.size
        qkv = linear(x, self.qkv).view(len(x), heads + 2 * kv_heads, size)
        turned = rotate(self._normed(qkv[:, : heads + kv_heads]), turns)
        attended = context.paged(layer).attend(
            turned[:, :heads], turned[:, heads:], qkv[:, heads + kv_heads :], size**-0.5
        )
        return linear(attended.reshape(len(x), heads * size), self.output)

    def _normed(self, qk: torch.Tensor) -> torch.Tensor:
        if self.q_norm is None or self.k_norm is None:
            return qk
        q, k = qk[:, : self.shape.heads], qk[:, self.shape.heads :]
        epsilon = self.shape.epsilon
        return torch.cat((rms_norm(q, self.q_norm, epsilon), rms_norm(k, self.k_norm, epsilon)), dim=1)
