"""Physical KV: lazily touched zeros."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from stoker.engine.kv import PagedStore
from stoker.models.context import PagedSpec

STATM = Path("/proc/self/statm")


@pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc")
def test_an_unused_pool_is_zero_and_costs_no_memory() -> None:
    """Of a 1 GiB pool of which little is used, less than a quarter may become resident."""
    before = _resident()
    store = PagedStore(PagedSpec(kv_heads=2, head_dim=64), 1 << 21, torch.bfloat16, torch.device("cpu"))
    store.keys[100:200] = 1
    grown = _resident() - before
    assert store.keys.nbytes + store.values.nbytes == 1 << 30
    assert grown < 1 << 28
    assert store.values[::100_000].count_nonzero() == 0
    assert store.keys[90:210].sum() == 2 * 100 * 64


def _resident() -> int:
    return int(STATM.read_text().split()[1]) * resource.getpagesize()
