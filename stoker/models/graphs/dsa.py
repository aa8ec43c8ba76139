"""Latent attention that reads only what an indexer chose (DeepSeek-V3.2, 2025), or what one in an earlier layer did."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from stoker.kernels.linear import Weight, linear
from stoker.kernels.rope import Turns, rotate
from stoker.models.context import ForwardContext, LatentIndexedSpec, LatentSpec
from stoker.models.graphs.mla import LatentAttention, LatentShape
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint

_KEY_NORM_EPSILON = 1e-6  # no configuration has it


@dataclass(frozen=True, slots=True)
class IndexShape:
    """`heads` of `size` dimensions, of which the first turn, choose `count` tokens."""

    heads: int
    size: int
    count: int


@dataclass(frozen=True, slots=True)
class Indexer:
    """Scores tokens by a few small heads on one key per token; queries come from the attention's query latent."""

    shape: IndexShape
    query: Weight
    key: Weight
    key_norm: torch.Tensor
    key_norm_bias: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def load(cls, weights: Checkpoint, name: str, hidden: int, q_rank: int, shape: IndexShape) -> Indexer:
        """The tensors below `name`."""
        return cls(
            shape,
            weights.linear([f"{name}.wq_b"], [shape.heads * shape.size], q_rank),
            weights.linear([f"{name}.wk"], [shape.size], hidden),
            weights.tensor(f"{name}.k_norm.weight", (shape.size,)),
            weights.tensor(f"{name}.k_norm.bias", (shape.size,)),
            weights.tensor(f"{name}.weights_proj.weight", (shape.heads, hidden), torch.float32),
        )

    def __call__(self, x: torch.Tensor, start: torch.Tensor, turns: Turns, context: ForwardContext, layer: int) -> None:
        """x [T, hidden], start [T, q_rank]: has the context choose what this batch's tokens read from here on."""
        query = rotate(linear(start, self.query).view(len(x), self.shape.heads, -1), turns)
        key = functional.layer_norm(
            linear(x, self.key), (self.shape.size,), self.key_norm, self.key_norm_bias, _KEY_NORM_EPSILON
        )
        key = rotate(key.unsqueeze(1), turns).squeeze(1)
        context.index(layer).choose(query, functional.linear(x.float(), self.weights), key, self.shape.count)


@dataclass(frozen=True, slots=True)
class SparseLatentAttention:
    """`indexer` None: the layer reads what the last indexer before it chose."""

    inner: LatentAttention
    indexer: Indexer | None

    @classmethod
    def load(
        cls, weights: Checkpoint, name: str, hidden: int, shape: LatentShape, index: IndexShape | None
    ) -> SparseLatentAttention:
        """The tensors below `name`."""
        if shape.q_rank is None:
            raise ModelError(f"{weights.where}: an indexer without q_lora_rank is not supported")
        inner = LatentAttention.load(weights, name, hidden, shape)
        indexer = None if index is None else Indexer.load(weights, f"{name}.indexer", hidden, shape.q_rank, index)
        return cls(inner, indexer)

    @property
    def cache(self) -> LatentSpec | LatentIndexedSpec:
        plain = self.inner.cache
        if self.indexer is None:
            return plain
        return LatentIndexedSpec(rank=plain.rank, rotary=plain.rotary, index=self.indexer.shape.size)

    def __call__(self, x: torch.Tensor, turns: Turns, context: ForwardContext, layer: int) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; `turns` are those of the batch's positions."""
        start, latent, key = self.inner.down_projected(x)
        if self.indexer is not None:
            self.indexer(x, start, turns, context, layer)
        return self.inner.attended(start, latent, key, turns, context, layer, sparse=True)
