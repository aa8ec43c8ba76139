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
    outputs = [
        _attend_causally(
            q[span.begin : span.end], _read(keys, span, block_size), _read(values, span, block_size), scale
        )
        for span in spans
    ]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _read(store: torch.Tensor, span: Span, block_size: int) -> torch.Tensor:
    """The sequence's rows [kv_heads, length, head_dim]: a view where its blocks are consecutive, else a copy."""
    if span.blocks is None:
        return store[:, span.first : span.first + span.length]
    heads, _, size = store.shape
    pages = store.view(heads, -1, block_size * size).index_select(1, span.blocks)
    return pages.view(heads, -1, size)[:, : span.length]


def _attend_causally(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """q [n, heads, d] are the last n of the tokens k, v [kv_heads, length, d]."""
    new, heads, size = q.shape
    kv_heads, length = k.shape[:2]
    # query heads of one KV head side by side; the KV is repeated over them by a stride of zero, not copied
    q = q.view(new, kv_heads, heads // kv_heads, size).permute(1, 2, 0, 3)
    k, v = k.unsqueeze(1), v.unsqueeze(1)
    prefix = length - new
    if new == 1:
        out, _ = attend(q, k, v, scale, causal=False)
    else:
        out, norm = attend(q, k[:, :, prefix:], v[:, :, prefix:], scale, causal=True)
        if prefix:
            # two attentions over disjoint keys join exactly by their normalisers: no mask is ever built
            earlier, earlier_norm = attend(q, k[:, :, :prefix], v[:, :, :prefix], scale, causal=False)
            share = torch.sigmoid(earlier_norm - norm).unsqueeze(-1)
            out = torch.lerp(out.float(), earlier.float(), share).to(q.dtype)
    return out.permute(2, 0, 1, 3).reshape(new, heads, size)


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, *, causal: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """q [G, R, n, d] over k, v [G, 1, m, d] -> (output [G, R, n, d], logsumexp of the scores [G, R, n] float32).

    `causal` needs n = m: query i sees keys 0..i.
    """
    if q.device.type == "cpu":
        shape = (*q.shape[:2], *k.shape[2:])
        return _flash_cpu(q, k.expand(shape), v.expand(shape), 0.0, causal, scale=scale)
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
