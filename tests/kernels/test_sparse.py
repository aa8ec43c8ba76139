"""Choosing tokens and attending over them, against both written out for one token at a time."""

from __future__ import annotations

import pytest
import torch

from stoker.kernels import sparse
from stoker.kernels.attention import Span, latent_attention
from stoker.kernels.sparse import choose, sparse_latent_attention

HEADS, INDEX_HEADS, SIZE, INDEX, RANK, BLOCK, COUNT, SCALE = 3, 4, 12, 6, 8, 4, 5, 0.3


class Batch:
    """Three sequences: new tokens behind a long past in scattered blocks, one token alone, a short one."""

    def __init__(self) -> None:
        random = torch.Generator().manual_seed(11)
        self.spans = [
            Span(0, 6, 22, 0, torch.tensor([9, 2, 7, 0, 5, 1])),
            Span(6, 7, 9, 12, None),
            Span(7, 10, COUNT, 32, None),
        ]
        self.keys = torch.randn(44, INDEX, generator=random)
        self.rows = torch.randn(44, SIZE, generator=random)
        self.index_q = torch.randn(10, INDEX_HEADS, INDEX, generator=random)
        self.weights = torch.randn(10, INDEX_HEADS, generator=random)
        self.q = torch.randn(10, HEADS, SIZE, generator=random)

    def slots(self, span: Span) -> list[int]:
        if span.blocks is None:
            return list(range(span.first, span.first + span.length))
        return [int(block) * BLOCK + offset for block in span.blocks for offset in range(BLOCK)][: span.length]

    def choices(self) -> list[sparse.Choice | None]:
        return choose(self.index_q, self.weights, self.keys, self.spans, BLOCK, COUNT)


@pytest.fixture(params=[(1, 1, 1), (44, 24, 2), (1 << 24,) * 3], ids=["single rows", "odd tiles", "one piece"])
def batch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Batch:
    for name, size in zip(("_PIECE", "_TILE", "_TILE_ROWS"), request.param, strict=True):
        monkeypatch.setattr(sparse, name, size)
    return Batch()


def test_the_best_of_the_past_are_chosen(batch: Batch) -> None:
    choices = batch.choices()
    assert choices[2] is None
    for span, choice in zip(batch.spans[:2], choices, strict=False):
        assert choice is not None
        for row in range(span.end - span.begin):
            past = batch.slots(span)[: span.length - (span.end - span.begin) + row + 1]
            score = torch.relu(batch.index_q[span.begin + row] @ batch.keys[past].T)
            best = (batch.weights[span.begin + row] @ score).topk(COUNT).indices
            assert set(choice.slots[row].tolist()) == {past[index] for index in best}
            assert choice.seen[row].all()


def test_early_tokens_choose_all_they_have() -> None:
    """A sequence that is longer than the choice, but whose first tokens have less past than that."""
    batch = Batch()
    batch.spans = [Span(0, 8, 8, 4, None)]
    (choice,) = batch.choices()
    assert choice is not None
    for row in range(8):
        chosen = set(choice.slots[row][choice.seen[row]].tolist())
        assert len(chosen) == min(row + 1, COUNT)
        assert chosen <= set(range(4, 4 + row + 1))


def test_attention_reads_the_chosen_only(batch: Batch) -> None:
    choices = batch.choices()
    found = sparse_latent_attention(batch.q, batch.rows, RANK, batch.spans, choices, BLOCK, SCALE)
    for span, choice in zip(batch.spans[:2], choices, strict=False):
        assert choice is not None
        for row in range(span.end - span.begin):
            read = batch.rows[choice.slots[row]]
            shares = (batch.q[span.begin + row] @ read.T * SCALE).softmax(dim=-1)
            torch.testing.assert_close(found[span.begin + row], shares @ read[:, :RANK])
    dense = latent_attention(batch.q[7:], batch.rows, RANK, [Span(0, 3, COUNT, 32, None)], BLOCK, SCALE)
    torch.testing.assert_close(found[7:], dense)


def test_choosing_everything_is_dense_attention() -> None:
    """Also where early tokens are padded."""
    batch = Batch()
    span = Span(0, 8, 8, 4, None)
    (choice,) = choose(batch.index_q, batch.weights, batch.keys, [span], BLOCK, 7)
    assert choice is not None
    found = sparse_latent_attention(batch.q[:8], batch.rows, RANK, [span], [choice], BLOCK, SCALE)
    dense = latent_attention(batch.q[:8], batch.rows, RANK, [span], BLOCK, SCALE)
    torch.testing.assert_close(found[:7], dense[:7])
    assert not torch.allclose(found[7], dense[7])
