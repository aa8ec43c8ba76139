"""Paged attention against attention written out with a mask, over ragged batches and shuffled blocks."""

from __future__ import annotations

import pytest
import torch

from stoker.kernels.attention import Span, attend, attend_plain, latent_attention, paged_attention

HEADS, KV_HEADS, SIZE, BLOCK, SCALE = 6, 2, 16, 4, 0.3


def _written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """q [n, heads, d] are the last n of the tokens k, v [kv_heads, m, d], in float64 with an explicit mask."""
    k, v = (part.double().repeat_interleave(HEADS // KV_HEADS, dim=0) for part in (k, v))
    scores = torch.einsum("nhd,hmd->hnm", q.double(), k) * SCALE
    new, length = scores.shape[1:]
    future = torch.ones(new, length, dtype=torch.bool).triu(length - new + 1)
    return torch.einsum("hnm,hmd->nhd", scores.masked_fill(future, float("-inf")).softmax(-1), v).float()


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(
    "sequences",
    [[(1, 1)], [(7, 7)], [(5, 23)], [(1, 40), (9, 9), (1, 3), (6, 30), (1, 17)], [(2, 3), (3, 3), (130, 300)]],
)
def test_ragged_batches(sequences: list[tuple[int, int]], scattered: bool) -> None:
    random = torch.Generator().manual_seed(len(sequences))
    pages = [-(-length // BLOCK) for _, length in sequences]
    blocks = torch.randperm(sum(pages) + 3, generator=random) if scattered else torch.arange(sum(pages) + 3)
    # slots that belong to no token are NaN: whoever reads one is found out
    keys, values = (torch.full((KV_HEADS, len(blocks) * BLOCK, SIZE), float("nan")) for _ in range(2))
    q = torch.randn(sum(new for new, _ in sequences), HEADS, SIZE, generator=random)
    spans: list[Span] = []
    expected: list[torch.Tensor] = []
    begin = page = 0
    for (new, length), count in zip(sequences, pages, strict=True):
        own = blocks[page : page + count]
        slots = (own[:, None] * BLOCK + torch.arange(BLOCK)).flatten()[:length]
        k, v = (torch.randn(KV_HEADS, length, SIZE, generator=random) for _ in range(2))
        keys[:, slots], values[:, slots] = k, v
        spans.append(Span(begin, begin + new, length, int(own[0]) * BLOCK, own if scattered else None))
        expected.append(_written_out(q[begin : begin + new], k, v))
        begin, page = begin + new, page + count
    torch.testing.assert_close(
        paged_attention(q, keys, values, spans, BLOCK, SCALE), torch.cat(expected), atol=1e-5, rtol=1e-5
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("causal", [False, True])
def test_both_forms_agree(causal: bool, dtype: torch.dtype, tolerance: float) -> None:
    random = torch.Generator().manual_seed(5)
    q = torch.randn(KV_HEADS, 3, 33, SIZE, generator=random).to(dtype)
    k, v = (torch.randn(KV_HEADS, 3, 33, SIZE, generator=random).to(dtype) for _ in range(2))
    out, norm = attend(q, k, v, SCALE, causal=causal)
    plain, plain_norm = attend_plain(q, k, v, SCALE, causal=causal)
    torch.testing.assert_close(out, plain, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(norm, plain_norm, atol=tolerance, rtol=tolerance)


def test_joining_a_prefix_keeps_bfloat16_precision() -> None:
    random = torch.Generator().manual_seed(6)
    k, v = (torch.randn(KV_HEADS, 2048, SIZE, generator=random).bfloat16() for _ in range(2))
    q = torch.randn(64, HEADS, SIZE, generator=random).bfloat16()
    out = paged_attention(q, k, v, [Span(0, 64, 2048, 0, None)], BLOCK, SCALE)
    torch.testing.assert_close(out.float(), _written_out(q, k, v), atol=2e-3, rtol=2e-2)


def test_latents_are_keys_and_in_part_values() -> None:
    random = torch.Generator().manual_seed(7)
    rows = torch.randn(1, 12, SIZE, generator=random)
    q = torch.randn(3, HEADS, SIZE, generator=random)
    k = rows.expand(KV_HEADS, -1, -1)
    for span in (Span(0, 3, 12, 0, None), Span(0, 3, 12, 0, torch.tensor([2, 0, 1])), Span(0, 1, 12, 0, None)):
        order = (
            torch.arange(12) if span.blocks is None else (span.blocks[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
        )
        new = q[: span.end]
        found = latent_attention(new, rows, 10, [span], BLOCK, SCALE)
        torch.testing.assert_close(found, _written_out(new, k[:, order], k[:, order, :10]), atol=1e-5, rtol=1e-5)
