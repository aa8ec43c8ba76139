"""Paged attention against attention written out with a mask, over ragged batches and shuffled blocks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from paged_case import Shape, make, written_out

from stoker.kernels.attention import (
    NARROW,
    Ragged,
    Span,
    attend,
    attend_plain,
    latent_attention,
    paged_attention,
    paged_attention_plain,
)
from stoker.kernels.native.library import Library

HEADS, KV_HEADS, SIZE, BLOCK, SCALE = 6, 2, 16, 4, 0.3
SHAPE = Shape(heads=HEADS, kv_heads=KV_HEADS, size=SIZE, block=BLOCK, scale=SCALE)


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(
    "sequences",
    [[(1, 1)], [(7, 7)], [(5, 23)], [(1, 40), (9, 9), (1, 3), (6, 30), (1, 17)], [(2, 3), (3, 3), (130, 300)]],
)
def test_ragged_batches(sequences: list[tuple[int, int]], scattered: bool) -> None:
    case = make(SHAPE, sequences, scattered=scattered)
    keys, values = case.stores()
    found = paged_attention_plain(case.q, case.k, case.v, keys, values, case.batch, SCALE)
    torch.testing.assert_close(found, case.expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(keys[case.batch.slots], case.k)
    assert torch.equal(values[case.batch.slots], case.v)


@pytest.mark.parametrize("size", [16, 20])
def test_a_batch_may_need_both_forms(native: Library, size: int) -> None:
    """Long chunks are torch's also where the native kernel takes the rest, and heads that it does not take are, too."""
    shape = Shape(heads=6, kv_heads=3, size=size, block=4)
    case = make(shape, [(1, 50), (NARROW + 1, 40), (NARROW, NARROW), (1, 1), (70, 70)])
    keys, values = case.stores()
    found = paged_attention(case.q, case.k, case.v, keys, values, case.batch, shape.scale)
    torch.testing.assert_close(found, case.expected, atol=1e-5, rtol=1e-5)
    assert torch.equal(keys[case.batch.slots], case.k)
    assert torch.equal(values[case.batch.slots], case.v)
    assert case.batch.narrow == [0, 2, 3]


def test_consecutive_blocks_are_read_in_place() -> None:
    tables = np.array([[4, 5, 6, 0], [4, 6, 5, 0], [9, 0, 0, 0], [7, 6, 0, 0], [2, 3, 4, 5]])
    lengths = [9, 12, 3, 4, 16]
    batch = Ragged(
        slots=torch.arange(5),
        starts=[0, 1, 2, 3, 4, 5],
        lengths=lengths,
        tables=torch.from_numpy(tables),
        host_tables=tables,
        block_size=4,
    )
    assert [(span.begin, span.end) for span in batch.spans] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert [span.length for span in batch.spans] == lengths
    assert [span.first for span in batch.spans] == [16, 16, 36, 28, 8]
    blocks = [None if span.blocks is None else span.blocks.tolist() for span in batch.spans]
    assert blocks == [None, [4, 6, 5], None, None, None]


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
    case = make(SHAPE, [(64, 2048)], dtype=torch.bfloat16)
    out = paged_attention_plain(case.q, case.k, case.v, *case.stores(), case.batch, SCALE)
    torch.testing.assert_close(out.float(), case.expected, atol=2e-3, rtol=2e-2)


def test_latents_are_keys_and_in_part_values() -> None:
    random = torch.Generator().manual_seed(7)
    rows = torch.randn(12, SIZE, generator=random)
    q = torch.randn(3, HEADS, SIZE, generator=random)
    for span in (Span(0, 3, 12, 0, None), Span(0, 3, 12, 0, torch.tensor([2, 0, 1])), Span(0, 1, 12, 0, None)):
        order = (
            torch.arange(12) if span.blocks is None else (span.blocks[:, None] * BLOCK + torch.arange(BLOCK)).flatten()
        )
        new, read = q[: span.end], rows[order].unsqueeze(1)
        found = latent_attention(new, rows, 10, [span], BLOCK, SCALE)
        torch.testing.assert_close(found, written_out(new, read, read[..., :10], SCALE), atol=1e-5, rtol=1e-5)
