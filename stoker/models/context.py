"""What a graph sees of the engine while it runs one batch: where tokens are and how to reach their cached KV.

The engine implements these; graphs only call them. A batch is ragged: the new tokens of all its sequences lie one
after another in one row of `tokens` (T in all), sequence `b` owning `[query_starts[b], query_starts[b + 1])`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import torch


class PagedSpec(msgspec.Struct, frozen=True, kw_only=True, tag="paged"):
    """A layer that keeps a key and a value per token and KV head (MHA, GQA, MQA)."""

    kv_heads: int
    head_dim: int

    def bytes_per_token(self, element_size: int) -> int:
        return 2 * self.kv_heads * self.head_dim * element_size


class LatentSpec(msgspec.Struct, frozen=True, kw_only=True, tag="latent"):
    """A layer that keeps one vector per token for all its heads (MLA): a latent of `rank` values, which is key and
    value at once, and a rotary key of `rotary`."""

    rank: int
    rotary: int

    def bytes_per_token(self, element_size: int) -> int:
        return (self.rank + self.rotary) * element_size


class LatentIndexedSpec(msgspec.Struct, frozen=True, kw_only=True, tag="latent_indexed"):
    """A latent layer that also keeps a key of `index` values per token, by which an indexer chooses (DSA)."""

    rank: int
    rotary: int
    index: int

    def bytes_per_token(self, element_size: int) -> int:
        return (self.rank + self.rotary + self.index) * element_size


class RecurrentSpec(msgspec.Struct, frozen=True, kw_only=True, tag="recurrent"):
    """A layer that keeps nothing per token, but a state of fixed size per sequence: the last `taps` inputs of a short
    convolution over `channels`, and per head a memory of `key` x `value` float32 (delta rule)."""

    channels: int
    taps: int
    heads: int
    key: int
    value: int

    def bytes_per_token(self, element_size: int) -> int:
        return 0

    def bytes_per_sequence(self, element_size: int) -> int:
        return self.channels * self.taps * element_size + self.heads * self.key * self.value * 4


CacheSpec = PagedSpec | LatentSpec | LatentIndexedSpec | RecurrentSpec


@dataclass(frozen=True)
class Embedded:
    """New tokens that are no text: rows [row, row + N) of the batch have `values` [N, hidden] in the place of the
    embeddings of their ids."""

    row: int
    values: torch.Tensor


@dataclass(frozen=True)
class BatchLayout:
    """Where the T new tokens of B sequences are.

    positions  [T] int64, position of each new token in its sequence
    slots      [T] int64, physical slot that each new token's KV is written to
    query_starts  B + 1 host ints, borders of the sequences within T
    context_lens  B host ints, tokens in each sequence's cache once this batch is written (>= its new tokens)
    tables     [B, P] int64, physical block of each logical block, rows padded with block 0
    embedded   what of the new tokens is no text
    """

    positions: torch.Tensor
    slots: torch.Tensor
    query_starts: Sequence[int]
    context_lens: Sequence[int]
    tables: torch.Tensor
    block_size: int
    embedded: Sequence[Embedded] = ()


class PagedView(Protocol):
    """One layer's paged cache, bound to the current batch."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        """Write k, v [T, kv_heads, head_dim] to the batch's slots, then attend causally over each sequence's
        whole context. q [T, heads, head_dim] -> [T, heads, head_dim]. heads is a multiple of kv_heads."""
        ...


class LatentView(Protocol):
    """One layer's latent cache, bound to the current batch."""

    def attend(self, q: torch.Tensor, row: torch.Tensor, scale: float, *, sparse: bool) -> torch.Tensor:
        """Write row [T, rank + rotary] to the batch's slots, then attend causally over each sequence's whole context,
        or, if `sparse`, over what the batch's last `choose` chose: scores from all of a row, results from its latent.
        q [T, heads, rank + rotary] -> [T, heads, rank]."""
        ...


class IndexView(Protocol):
    """One layer's index keys, bound to the current batch."""

    def choose(self, q: torch.Tensor, weights: torch.Tensor, key: torch.Tensor, count: int) -> None:
        """Write key [T, index] to the batch's slots, then choose for each new token, among those up to itself, the
        `count` with the highest sum over heads of weight * relu(q . key); the choice holds until the next one.
        q [T, heads, index], weights [T, heads] float32."""
        ...


class RecurrentView(Protocol):
    """One layer's states, bound to the current batch: each sequence goes on from its own, and leaves it changed."""

    def convolve(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [T, channels], weight [channels, taps + 1], the last for the token itself -> [T, channels]."""
        ...

    def recall(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        """The gated delta rule (`kernels/delta.py`): q, k and decay [T, heads, key], v [T, heads, value], beta [T,
        heads] -> [T, heads, value]. `decay` <= 0 is the log of what a channel keeps, before the token is written."""
        ...


class ForwardContext(Protocol):
    """All a graph may use beside its own weights."""

    @property
    def layout(self) -> BatchLayout: ...

    def paged(self, layer: int) -> PagedView:
        """The cache of `layer`, which must have declared a `PagedSpec`."""
        ...

    def latent(self, layer: int) -> LatentView:
        """The cache of `layer`, which must have declared a `LatentSpec` or `LatentIndexedSpec`."""
        ...

    def index(self, layer: int) -> IndexView:
        """The index of `layer`, which must have declared a `LatentIndexedSpec`."""
        ...

    def recurrent(self, layer: int) -> RecurrentView:
        """The states of `layer`, which must have declared a `RecurrentSpec`."""
        ...


class Vision(Protocol):
    """The part of a model that turns images into what its language model reads."""

    @property
    def hidden(self) -> int:
        """Values of a row."""
        ...

    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        """uint8 [height, width, 3], both sides whole tokens -> one row per token, [tokens, hidden], row by row."""
        ...


class Mtp(Protocol):
    """A layer that predicts one token further ahead than what is before it: the model, or the layer before. Its cache
    is one of the graph's."""

    def forward(self, token_ids: torch.Tensor, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """token_ids [T] int64, each the one that follows what `hidden` [T, hidden] was made of, by the graph's
        `forward` or by the layer before -> the same for this layer. Positions and slots in `context` are those of
        `hidden`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of `forward`'s result [N, hidden] -> float32 logits [N, vocab_size] of what follows those tokens."""
        ...


class Graph(Protocol):
    """A causal language model. Weights are loaded, on one device, in one dtype, in inference mode."""

    @property
    def caches(self) -> Sequence[CacheSpec]:
        """One cache kind per layer, in order, those of `mtp` last."""
        ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def vision(self) -> Vision | None:
        """None for a model that takes text only."""
        ...

    @property
    def mtp(self) -> Sequence[Mtp]:
        """What predicts further tokens, in order; none unless it was asked for when the graph was loaded."""
        ...

    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        """token_ids [T] int64 -> final hidden states [T, hidden], normalised."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Rows of `forward`'s result [N, hidden] -> float32 logits [N, vocab_size]."""
        ...
