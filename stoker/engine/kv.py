"""Where the cache physically is: one store per layer, by its kind, and its view of the current batch.

Owns the memory and the reading order; which block belongs to whom is the block pool's business.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from stoker.kernels.attention import Ragged, latent_attention, paged_attention
from stoker.kernels.convolution import causal_convolution
from stoker.kernels.delta import delta_rule
from stoker.kernels.sparse import Choice, choose, sparse_latent_attention
from stoker.models.context import BatchLayout, CacheSpec, LatentIndexedSpec, LatentSpec, PagedSpec, RecurrentSpec


class PagedStore:
    """Keys and values of one layer, [slots, kv_heads, head_dim] each.

    Zeroed, never uninitialised, so that no stray NaN can be read.
    """

    def __init__(self, spec: PagedSpec, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (slots, spec.kv_heads, spec.head_dim)
        self.keys = _zeros(shape, dtype, device)
        self.values = _zeros(shape, dtype, device)


class LatentStore:
    """Latents and rotary keys of one layer, [slots, rank + rotary]. Zeroed too."""

    def __init__(
        self, spec: LatentSpec | LatentIndexedSpec, slots: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.rank = spec.rank
        self.rows = _zeros((slots, spec.rank + spec.rotary), dtype, device)


class LatentIndexedStore(LatentStore):
    """Beside them the index keys [slots, index]."""

    def __init__(self, spec: LatentIndexedSpec, slots: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(spec, slots, dtype, device)
        self.keys = _zeros((slots, spec.index), dtype, device)


class RecurrentStore:
    """States of one layer: inputs of its convolution [states + 1, channels, taps] and its memories [states + 1, heads,
    key, value] float32. The last slot is never written: new sequences go on from it."""

    def __init__(self, spec: RecurrentSpec, states: int, dtype: torch.dtype, device: torch.device) -> None:
        self.tails = _zeros((states + 1, spec.channels, spec.taps), dtype, device)
        self.memory = _zeros((states + 1, spec.heads, spec.key, spec.value), torch.float32, device)


Store = PagedStore | LatentStore | RecurrentStore


def make_store(spec: CacheSpec, slots: int, states: int, dtype: torch.dtype, device: torch.device) -> Store:
    """The memory of one layer that declared `spec`, for so many tokens or states."""
    if isinstance(spec, RecurrentSpec):
        return RecurrentStore(spec, states, dtype, device)
    if isinstance(spec, PagedSpec):
        return PagedStore(spec, slots, dtype, device)
    if isinstance(spec, LatentIndexedSpec):
        return LatentIndexedStore(spec, slots, dtype, device)
    return LatentStore(spec, slots, dtype, device)


@dataclass(frozen=True, slots=True)
class StateMoves:
    """Slots that the batch's sequences read their states from and leave them in, [B] int64 each."""

    sources: torch.Tensor
    targets: torch.Tensor


class BatchContext:
    """A `ForwardContext`: every layer's store, bound to one batch, and what the batch's last indexer chose. `moves` is
    there if any layer has states."""

    def __init__(
        self, layout: BatchLayout, host_tables: np.ndarray, stores: Sequence[Store], moves: StateMoves | None = None
    ) -> None:
        """`host_tables` is `layout.tables` on the host."""
        self.layout = layout
        self.moves = moves
        self.ragged = Ragged(
            slots=layout.slots,
            starts=layout.query_starts,
            lengths=layout.context_lens,
            tables=layout.tables,
            host_tables=host_tables,
            block_size=layout.block_size,
        )
        self.choices: list[Choice | None] | None = None
        self._stores = stores

    def paged(self, layer: int) -> _BoundPages:
        store = self._stores[layer]
        assert isinstance(store, PagedStore)
        return _BoundPages(store, self)

    def latent(self, layer: int) -> _BoundLatents:
        store = self._stores[layer]
        assert isinstance(store, LatentStore)
        return _BoundLatents(store, self)

    def index(self, layer: int) -> _BoundIndex:
        store = self._stores[layer]
        assert isinstance(store, LatentIndexedStore)
        return _BoundIndex(store, self)

    def recurrent(self, layer: int) -> _BoundStates:
        store = self._stores[layer]
        assert isinstance(store, RecurrentStore)
        assert self.moves is not None
        return _BoundStates(store, self.moves, self.layout.query_starts)


class _BoundPages:
    """A `PagedView`."""

    def __init__(self, store: PagedStore, batch: BatchContext) -> None:
        self._store = store
        self._batch = batch

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        return paged_attention(q, k, v, self._store.keys, self._store.values, self._batch.ragged, scale)


class _BoundLatents:
    """A `LatentView`."""

    def __init__(self, store: LatentStore, batch: BatchContext) -> None:
        self._store = store
        self._batch = batch

    def attend(self, q: torch.Tensor, row: torch.Tensor, scale: float, *, sparse: bool) -> torch.Tensor:
        rows, rank, batch = self._store.rows, self._store.rank, self._batch
        size = batch.layout.block_size
        rows.index_copy_(0, batch.layout.slots, row)
        if not sparse:
            return latent_attention(q, rows, rank, batch.ragged.spans, size, scale)
        assert batch.choices is not None
        return sparse_latent_attention(q, rows, rank, batch.ragged.spans, batch.choices, size, scale)


class _BoundIndex:
    """An `IndexView`."""

    def __init__(self, store: LatentIndexedStore, batch: BatchContext) -> None:
        self._store = store
        self._batch = batch

    def choose(self, q: torch.Tensor, weights: torch.Tensor, key: torch.Tensor, count: int) -> None:
        keys, batch = self._store.keys, self._batch
        keys.index_copy_(0, batch.layout.slots, key)
        batch.choices = choose(q, weights, keys, batch.ragged.spans, batch.layout.block_size, count)


class _BoundStates:
    """A `RecurrentView`."""

    def __init__(self, store: RecurrentStore, moves: StateMoves, borders: Sequence[int]) -> None:
        self._store = store
        self._moves = moves
        self._borders = borders

    def convolve(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        moves = self._moves
        return causal_convolution(x, weight, self._store.tails, moves.sources, moves.targets, self._borders)

    def recall(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, beta: torch.Tensor
    ) -> torch.Tensor:
        moves = self._moves
        return delta_rule(q, k, v, decay, beta, self._store.memory, moves.sources, moves.targets, self._borders)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """On the CPU, pages that the system zeroes when they are first touched: a pool costs only what was ever used of
    it, where torch.zeros would write all of it. Large pages where the system has them: attention reads small runs at
    scattered places, and looking up where they are costs a third of the time otherwise."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
