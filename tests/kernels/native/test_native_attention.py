"""The native attention kernel against attention written out, on every instruction set of this host."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from paged_case import Case, Shape, make

from stoker.kernels.native.attention import NativeAttention
from stoker.kernels.native.library import Library

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1e-2}


def attend(native: Library, isa: str, case: Case, scale: float, which: list[int] | None = None) -> torch.Tensor:
    """The result for the sequences `which`, all by default; the others' rows stay 7."""
    batch = case.batch
    rows = list(range(len(batch.lengths))) if which is None else which
    kernel = NativeAttention(
        native, isa, batch.slots, batch.starts, batch.lengths, batch.tables, batch.block_size, rows
    )
    keys, values = case.stores()
    out = torch.full(case.q.shape, 7, dtype=case.q.dtype)
    kernel(case.q, case.k, case.v, keys, values, out, scale)
    for store, new in ((keys, case.k), (values, case.v)):
        torch.testing.assert_close(store[batch.slots], new, atol=0, rtol=0, equal_nan=True)
    return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(12))
def test_any_shape(native: Library, seed: int, dtype: torch.dtype) -> None:
    draw = random.Random(seed)
    kv_heads = draw.choice([1, 2, 3, 5])
    shape = Shape(
        heads=kv_heads * draw.choice([1, 2, 3, 4, 7, 8]),
        kv_heads=kv_heads,
        size=draw.choice([16, 32, 48, 64, 80, 128, 256]),
        block=draw.choice([1, 3, 16, 64, 300]),
        scale=draw.choice([0.1, 0.3]),
    )
    sequences = [(new, new + draw.choice([0, 1, 15, 240, 256, 700])) for new in draw.choices([1, 1, 2, 5, 16], k=4)]
    case = make(shape, sequences, dtype=dtype, seed=seed)
    for isa in native.isas:
        found = attend(native, isa, case, shape.scale)
        torch.testing.assert_close(found.float(), case.expected, atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype], msg=isa)


def test_many_rows_at_once(native: Library) -> None:
    """More query rows to a head than are held at a time, and more sequences than one item each."""
    shape = Shape(heads=16, kv_heads=1, size=32, block=16)
    case = make(shape, [(16, 300), *[(1, 257)] * 70])
    for isa in native.isas:
        torch.testing.assert_close(attend(native, isa, case, 0.3), case.expected, atol=2e-5, rtol=2e-5, msg=isa)


def test_only_those_named_are_attended_for(native: Library) -> None:
    shape = Shape(heads=4, kv_heads=2, size=16, block=4)
    case = make(shape, [(2, 9), (1, 30), (3, 3)])
    out = attend(native, native.best, case, 0.3, which=[2, 0])
    torch.testing.assert_close(out[[0, 1, 3, 4, 5]], case.expected[[0, 1, 3, 4, 5]], atol=1e-5, rtol=1e-5)
    assert (out[2] == 7).all()
    assert (attend(native, native.best, case, 0.3, which=[]) == 7).all()


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_neither_threads_nor_neighbours_change_a_bit(native: Library, threads: None) -> None:
    shape = Shape(heads=6, kv_heads=3, size=64, block=16)
    sequences = [(1, 1000), (4, 600), (1, 1), (1, 256), (2, 257)]
    case = make(shape, sequences, dtype=torch.bfloat16)
    together = attend(native, native.best, case, 0.3)
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        assert torch.equal(attend(native, native.best, case, 0.3), together)
    for row in range(len(sequences)):
        alone = attend(native, native.best, case, 0.3, which=[row])
        rows = slice(case.batch.starts[row], case.batch.starts[row + 1])
        assert torch.equal(alone[rows], together[rows])


def test_a_head_that_is_not_finite_stays_alone(native: Library) -> None:
    shape = Shape(heads=6, kv_heads=3, size=16, block=4)
    case = make(shape, [(1, 30), (1, 40)])
    clean = attend(native, native.best, case, 0.3)
    case.k[0, 1, 3] = float("nan")
    case.v[1, 0, 0] = float("inf")
    for isa in native.isas:
        found = attend(native, isa, case, 0.3)
        assert found[0, 2:4].isnan().all(), isa
        assert not found[1, :2, 0].isfinite().any(), isa
        torch.testing.assert_close(found[0, [0, 1, 4, 5]], clean[0, [0, 1, 4, 5]], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(found[1, 2:], clean[1, 2:], atol=1e-5, rtol=1e-5)


def test_extreme_scores(native: Library) -> None:
    """The largest score decides all, wherever it is; equal ones share."""
    shape = Shape(heads=2, kv_heads=1, size=16, block=4, scale=1.0)
    for place in (0, 299, 511, 599):
        case = make(shape, [(1, 600)])
        slots = case.batch.tables[0].repeat_interleave(4) * 4 + torch.arange(4).repeat(150)
        case.keys[slots] = 0
        case.k[:] = 0
        case.q[:] = 100
        (case.keys[slots[place]] if place < 599 else case.k[0]).fill_(50)
        expected = case.values[slots[place], 0] if place < 599 else case.v[0, 0]
        for isa in native.isas:
            found = attend(native, isa, case, 1.0)
            torch.testing.assert_close(found[0], expected.expand(2, 16), atol=1e-5, rtol=1e-5, msg=isa)


def test_what_the_kernel_does_not_take() -> None:
    def takes(size: int, q: torch.dtype, keys: torch.dtype) -> bool:
        return NativeAttention.takes(torch.empty(1, 1, size, dtype=q), torch.empty(1, 1, size, dtype=keys))

    single, half = torch.float32, torch.bfloat16
    assert takes(64, single, single)
    assert takes(256, half, half)
    assert not takes(64, single, half)
    assert not takes(64, torch.float16, torch.float16)
    assert not takes(20, single, single)
    assert not takes(272, single, single)
