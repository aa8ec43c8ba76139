"""Causal attention of a ragged batch over paged keys and values.

Keys and values are [kv_heads, slots, head_dim]: head-major, so that a run of consecutive slots is one dense read per
head. Every sequence is read alone and exactly to its length, so nothing outside it (a stale page, another sequence's
NaN) can reach its result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_flash_cpu = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


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


def paged_attention(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, spans: list[Span], block_size: int, scale: float
) -> torch.Tensor:
    """q [T, heads, head_dim], keys and values [kv_heads, slots, head_dim] -> [T, heads, head_dim]."""
    tokens, heads, size = q.shape
    group = heads // len(keys)
    grouped = q.view(tokens, len(keys), group, size)
    if len(spans) == tokens:  # a batch that only decodes: one view op for all queries instead of two for each
        queries = grouped.unsqueeze(3).unbind(0)
    else:
        queries = [grouped[span.begin : span.end].permute(1, 2, 0, 3) for span in spans]
    outputs: list[torch.Tensor] = []
    for query, span in zip(queries, spans, strict=True):
        k = _read(keys, span, block_size, group)
        v = k if values is keys else _read(values, span, block_size, group)
        outputs.append(_attend_causally(query, k, v, scale))
    joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return joined.view(tokens, heads, size)


def latent_attention(
    q: torch.Tensor, rows: torch.Tensor, rank: int, spans: list[Span], block_size: int, scale: float
) -> torch.Tensor:
    """q [T, heads, size], rows [1, slots, size] whose first `rank` values are the values -> [T, heads, rank].

    The rest of a row is weighed too and cut off: an eighth of the work at the usual sizes, for one dense read.
    """
    return paged_attention(q, rows, rows, spans, block_size, scale)[..., :rank]


def _read(store: torch.Tensor, span: Span, block_size: int, group: int) -> torch.Tensor:
    """The sequence's rows [kv_heads, group, length, head_dim], the same for all query heads of a group.

    A view where its blocks are consecutive, else a copy; repeated over the group by a stride of zero.
    """
    heads, _, size = store.shape
    first = span.first
    if span.blocks is not None:
        store = store.view(heads, -1, block_size * size).index_select(1, span.blocks).view(heads, -1, size)
        first = 0
    # one op for what would be slice, unsqueeze and expand: it runs twice per sequence and layer
    head, row, element = store.stride()
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
