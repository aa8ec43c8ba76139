"""Causal attention of a ragged batch over paged keys and values.

Keys and values are [slots, kv_heads, head_dim]: token-major, so that a block is one dense read for all heads. Every
sequence is read alone and exactly to its length, so nothing outside it (a stale page, another sequence's NaN) can
reach its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from stoker.kernels.native.attention import NativeAttention
from stoker.kernels.native.library import load

_flash_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


NARROW = 16  # new tokens of a sequence up to which the native kernel reads its past faster than torch's matrices do


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence of a batch: its new tokens are rows `[begin, end)`, the last of its `length` tokens in the cache.

    They lie in consecutive slots from `first` on, or, where `blocks` is set, in those blocks [P] int64.
    """

    begin: int
    end: int
    length: int
    first: int
    blocks: torch.Tensor | None


@dataclass(frozen=True)
class Ragged:
    """A batch of B sequences with T new tokens, of which sequence b owns `[starts[b], starts[b + 1])`.

    slots    [T] int64, where each new token's key and value go
    lengths  B, tokens in the cache with the new ones
    tables   [B, P] int64, physical block of each logical block; `host_tables` is the same on the host
    """

    slots: torch.Tensor
    starts: Sequence[int]
    lengths: Sequence[int]
    tables: torch.Tensor
    host_tables: np.ndarray
    block_size: int

    @cached_property
    def spans(self) -> list[Span]:
        """How each sequence is read: in place where its blocks are consecutive."""
        lengths = np.asarray(self.lengths)
        pages = -(-lengths // self.block_size)
        breaks = np.diff(self.host_tables, axis=1) != 1
        breaks &= np.arange(1, self.host_tables.shape[1]) < pages[:, None]
        scattered = breaks.any(axis=1)
        return [
            Span(
                begin=self.starts[row],
                end=self.starts[row + 1],
                length=self.lengths[row],
                first=int(self.host_tables[row, 0]) * self.block_size,
                blocks=self.tables[row, : pages[row]] if scattered[row] else None,
            )
            for row in range(len(lengths))
        ]

    @cached_property
    def narrow(self) -> list[int]:
        """The sequences with few new tokens."""
        return [row for row in range(len(self.lengths)) if self.starts[row + 1] - self.starts[row] <= NARROW]

    @cached_property
    def native(self) -> NativeAttention | None:
        """The native kernel, bound to this batch."""
        library = load()
        if isinstance(library, str) or self.slots.device.type != "cpu":
            return None
        return NativeAttention(
            library, library.best, self.slots, self.starts, self.lengths, self.tables, self.block_size, self.narrow
        )


def paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: Ragged,
    scale: float,
) -> torch.Tensor:
    """Write k, v [T, kv_heads, head_dim] to the batch's slots of keys, values [slots, kv_heads, head_dim], then attend:
    q [T, heads, head_dim] -> [T, heads, head_dim]."""
    native = batch.native if NativeAttention.takes(q, keys) else None
    if native is None:
        return paged_attention_plain(q, k, v, keys, values, batch, scale)
    out = q.new_empty(q.shape)
    native(q, k, v, keys, values, out, scale)
    if len(batch.narrow) < len(batch.lengths):
        for span in batch.spans:
            if span.end - span.begin > NARROW:
                out[span.begin : span.end] = _attend_span(q[span.begin : span.end], keys, values, span, batch, scale)
    return out


def paged_attention_plain(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    batch: Ragged,
    scale: float,
) -> torch.Tensor:
    """The same in plain torch: the native kernel's twin, and what runs on other devices."""
    keys.index_copy_(0, batch.slots, k)
    values.index_copy_(0, batch.slots, v)
    outputs = [_attend_span(q[span.begin : span.end], keys, values, span, batch, scale) for span in batch.spans]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_span(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, span: Span, batch: Ragged, scale: float
) -> torch.Tensor:
    """q [n, heads, head_dim], the span's new tokens -> the same shape."""
    group = q.shape[1] // keys.shape[1]
    k, v = _read(keys, span, batch.block_size, group), _read(values, span, batch.block_size, group)
    query = q.unflatten(1, (keys.shape[1], group)).permute(1, 2, 0, 3)
    return _attend_causally(query, k, v, scale).flatten(1, 2)


def latent_attention(
    q: torch.Tensor, rows: torch.Tensor, rank: int, spans: list[Span], block_size: int, scale: float
) -> torch.Tensor:
    """q [T, heads, size], rows [slots, size] whose first `rank` values are the values -> [T, heads, rank].

    The rest of a row is weighed too and cut off: an eighth of the work at the usual sizes, for one dense read.
    """
    outputs: list[torch.Tensor] = []
    for span in spans:
        read = _read(rows.unsqueeze(1), span, block_size, q.shape[1])
        query = q[span.begin : span.end].permute(1, 0, 2).unsqueeze(0)
        outputs.append(_attend_causally(query, read, read, scale).squeeze(1)[..., :rank])
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _read(store: torch.Tensor, span: Span, block_size: int, group: int) -> torch.Tensor:
    """The sequence's rows of store [slots, kv_heads, head_dim] as [kv_heads, group, length, head_dim], the same for all
    query heads of a group: a view where its blocks are consecutive, else a copy; repeated by a stride of zero.
    """
    _, heads, size = store.shape
    first = span.first
    if span.blocks is not None:
        store = store.unflatten(0, (-1, block_size)).index_select(0, span.blocks).flatten(0, 1)
        first = 0
    # one op for what would be slice, transpose, unsqueeze and expand: it runs twice per sequence and layer
    row, head, element = store.stride()
    shape = (heads, group, span.length, size)
    return store.as_strided(shape, (head, 0, row, element), store.storage_offset() + first * row)


def _attend_causally(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """q [kv_heads, group, n, d] are the last n of the m tokens k, v [kv_heads, group, m, d].

    -> [n, kv_heads, group, d], contiguous.
    """
    new = q.shape[2]
    prefix = k.shape[2] - new
    if new == 1 and len(q) == 1:
        # as rows of one head, all heads read their one key together (measured: 4x at 64 heads and 8,192 tokens)
        out, _ = attend(q.transpose(1, 2), k[:, :1], v[:, :1], scale, causal=False)
        out = out.transpose(1, 2)
    elif new == 1:
        out, _ = attend(q, k, v, scale, causal=False)
    else:
        out, norm = attend(q, k[:, :, prefix:], v[:, :, prefix:], scale, causal=True)
        if prefix:
            # two attentions over disjoint keys join exactly by their normalisers: no mask is ever built;
            # without one the rows of a group are alike, and as one head they share each block of keys in cache
            rows = q.reshape(q.shape[0], 1, -1, q.shape[3])
            earlier, earlier_norm = attend(rows, k[:, :1, :prefix], v[:, :1, :prefix], scale, causal=False)
            earlier, earlier_norm = earlier.reshape(q.shape), earlier_norm.reshape(norm.shape)
            share = torch.sigmoid(earlier_norm - norm).unsqueeze(-1)
            out = torch.lerp(out.float(), earlier.float(), share).to(q.dtype)
    return out.permute(2, 0, 1, 3).contiguous()


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [B, H, n, d] over k, v [B, H, m, d] -> (output [B, H, n, d], logsumexp of the scores [B, H, n] float32).

    `causal` needs n = m: query i sees keys 0..i.
    """
    if q.device.type == "cpu":
        return _flash_cpu(q, k, v, 0.0, causal, scale=scale)
    return attend_plain(q, k, v, scale, causal=causal)


def attend_plain(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attend` written out: the reference, and what runs on devices that have no kernel of their own yet."""
    scores = torch.matmul(q, k.transpose(-1, -2)).float() * scale
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
    norm = scores.logsumexp(dim=-1)
    return torch.matmul((scores - norm.unsqueeze(-1)).exp().to(q.dtype), v), norm
