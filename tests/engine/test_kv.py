"""Physical KV: lazily touched zeros, and how a batch's block tables become reading orders."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest
import torch

from stoker.engine.kv import PagedStore, spans_of
from stoker.models.context import BatchLayout, PagedSpec

STATM = Path("/proc/self/statm")


@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc")
def test_an_unused_pool_is_zero_and_costs_no_memory() -> None:
    """Of a 1 GiB pool of which little is used, less than a quarter may become resident."""
    before = _resident()
    store = PagedStore(PagedSpec(kv_heads=2, head_dim=64), 1 << 21, torch.bfloat16, torch.device("cpu"))
    store.keys[:, 100:200] = 1
    grown = _resident() - before
    assert store.keys.nbytes + store.values.nbytes == 1 << 30
    assert grown < 1 << 28
    assert store.values[:, ::100_000].count_nonzero() == 0
    assert store.keys[:, 90:210].sum() == 2 * 100 * 64


def _resident() -> int:
    return int(STATM.read_text().split()[1]) * resource.getpagesize()


def test_consecutive_blocks_are_read_in_place() -> None:
    tables = np.array([[4, 5, 6, 0], [4, 6, 5, 0], [9, 0, 0, 0], [7, 6, 0, 0], [2, 3, 4, 5]])
    lengths = [9, 12, 3, 4, 16]
    layout = BatchLayout(
        positions=torch.arange(5),
        slots=torch.arange(5),
        query_starts=[0, 1, 2, 3, 4, 5],
        context_lens=lengths,
        tables=torch.from_numpy(tables),
        block_size=4,
    )
    spans = spans_of(tables, layout)
    assert [(span.begin, span.end) for span in spans] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert [span.length for span in spans] == lengths
    assert [span.first for span in spans] == [16, 16, 36, 28, 8]
    blocks = [None if span.blocks is None else span.blocks.tolist() for span in spans]
    assert blocks == [None, [4, 6, 5], None, None, None]
