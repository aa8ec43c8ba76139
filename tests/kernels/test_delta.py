"""The delta rule in chunks and steps against its equation, token by token in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.kernels import delta
from stoker.kernels.delta import CHUNK, delta_rule

HEADS, SIZE, VALUE = 3, 10, 7
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def inputs(tokens: int, seed: int, fastest: float = 1.0) -> Inputs:
    """q, k, v, decay and beta; channels forget by up to exp(-fastest) a token."""
    draw = torch.Generator().manual_seed(seed)
    q, k = (torch.randn(tokens, HEADS, SIZE, generator=draw) for _ in range(2))
    v = torch.randn(tokens, HEADS, VALUE, generator=draw)
    decay = -fastest * torch.rand(tokens, HEADS, SIZE, generator=draw)
    return q, k, v, decay, torch.rand(tokens, HEADS, generator=draw)


def by_the_equation(parts: Inputs, memory: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The recurrence as it is written: S <- D S, then S <- S + beta k (v - S^T k)^T, o = S^T q."""
    q, k, v, decay, beta = (x.double() for x in parts)
    memory, outputs = memory.double(), []
    for t in range(len(q)):
        heads = []
        after = []
        for h in range(q.shape[1]):
            unit_q = q[t, h] / (q[t, h].dot(q[t, h]) + 1e-6).sqrt() / q.shape[-1] ** 0.5
            unit_k = k[t, h] / (k[t, h].dot(k[t, h]) + 1e-6).sqrt()
            state = torch.diag(decay[t, h].exp()) @ memory[h]
            state = state + beta[t, h] * torch.outer(unit_k, v[t, h] - state.T @ unit_k)
            heads.append(state.T @ unit_q)
            after.append(state)
        outputs.append(torch.stack(heads))
        memory = torch.stack(after)
    return torch.stack(outputs), memory


@pytest.fixture(params=["steps", "chunks"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., object]:
    """Both ways to take a run of tokens, each made that of every device."""
    way = getattr(delta, request.param)
    monkeypatch.setattr(delta, "steps", way)
    return way


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("fastest", [0.0, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("tokens", [1, 2, 15, 16, 17, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_a_run_is_the_recurrence(tokens: int, fastest: float) -> None:
    """However fast channels forget: at 1000 a token all that a chunk began with is gone within a token or two."""
    parts = inputs(tokens, tokens, fastest)
    slots = torch.randn(4, HEADS, SIZE, VALUE)
    want, left = by_the_equation(parts, slots[2])
    kept = slots.clone()
    found = delta_rule(*parts, slots, torch.tensor([2]), torch.tensor([1]), [0, tokens])
    assert (found - want).abs().max() < 1e-5
    assert (slots[1] - left).abs().max() < 1e-5
    assert torch.equal(slots[[0, 2, 3]], kept[[0, 2, 3]])


@pytest.mark.parametrize("way", ["steps", "chunks"])
@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.sampled_from([1, 1, 1, 2, 5, 20, 70]), min_size=1, max_size=5),
    cuts=st.lists(st.integers(0, 70), max_size=3),
    data=st.data(),
)
def test_batches_and_cuts_change_nothing(way: str, lengths: list[int], cuts: list[int], data: st.DataObject) -> None:
    """Sequences together, cut at the same places, from slot to slot or in place: each as if alone and whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "steps", getattr(delta, way))
        in_any_cut(lengths, cuts, data)


def in_any_cut(lengths: list[int], cuts: list[int], data: st.DataObject) -> None:
    alone = [inputs(length, seed, 3.0) for seed, length in enumerate(lengths)]
    slots = torch.randn(2 * len(lengths), HEADS, SIZE, VALUE)
    where = data.draw(st.permutations(range(len(slots))))
    start = [slots[slot].clone() for slot in where[: len(lengths)]]
    held = list(where[: len(lengths)])
    spare = list(where[len(lengths) :])
    found: list[list[torch.Tensor]] = [[] for _ in lengths]
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 70], strict=True):
        rows = [row for row, length in enumerate(lengths) if min(end, length) > begin]
        if not rows:
            continue
        pieces = [tuple(x[begin:end] for x in alone[row]) for row in rows]
        joined = [torch.cat(column) for column in zip(*pieces, strict=True)]
        borders = [0]
        for piece in pieces:
            borders.append(borders[-1] + len(piece[0]))
        targets = [spare[i] if data.draw(st.booleans()) else held[row] for i, row in enumerate(rows)]
        sources = torch.tensor([held[row] for row in rows])
        out = delta_rule(*joined, slots, sources, torch.tensor(targets), borders)
        for i, row in enumerate(rows):
            if targets[i] != held[row]:
                held[row], spare[i] = targets[i], held[row]
            found[row].append(out[borders[i] : borders[i + 1]])
    for row, parts in enumerate(alone):
        want, left = by_the_equation(parts, start[row])
        assert (torch.cat(found[row]) - want).abs().max() < 1e-5
        assert (slots[held[row]] - left).abs().max() < 1e-5


def test_nothing_overflows(run: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    out, after = run(*inputs(70, 1, 500.0), torch.full((1, HEADS, SIZE, VALUE), 1e20))
    assert out.isfinite().all()
    assert after.isfinite().all()


@pytest.mark.usefixtures("run")
def test_half_precision_goes_in_and_comes_out() -> None:
    parts = inputs(40, 3)
    slots = torch.zeros(2, HEADS, SIZE, VALUE)
    want, _ = by_the_equation(parts, slots[0])
    short = tuple(x.bfloat16() for x in parts)
    found = delta_rule(*short, slots, torch.tensor([0]), torch.tensor([1]), [0, 40])
    assert found.dtype == torch.bfloat16
    assert (found - want).abs().max() < 0.02
