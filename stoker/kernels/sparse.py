"""Sparse attention over a latent cache (DeepSeek-V3.2, 2025): a light indexer scores every earlier token, and attention
reads only the best few.

Both halves work on pieces of a batch, so that a long context costs time but never a matrix of all against all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from stoker.kernels.attention import Span, latent_attention

_PIECE = 1 << 24  # elements of the largest intermediate
_TILE = 1 << 18  # and of what is made of scores by the heads of a CPU: as much as stays in a core's cache
_TILE_ROWS = 32


@dataclass(frozen=True, slots=True)
class Choice:
    """What the n new tokens of one sequence read: slots [n, count] int64. Where `seen` [n, count] is false there was
    nothing more to read."""

    slots: torch.Tensor
    seen: torch.Tensor


def choose(
    q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, spans: list[Span], block_size: int, count: int
) -> list[Choice | None]:
    """q [T, heads, size], weights [T, heads] float32, keys [slots, size] -> for each span the `count` tokens with the
    highest sum over heads of weight * relu(q . key), or None where the whole sequence is no longer than that.

    Scores are float32, whatever the dtype; which of equal ones is chosen is not defined. The usual factors (size^-0.5,
    heads^-0.5) are left out: they change no order.
    """
    return [
        None if span.length <= count else _choose(q[span.begin : span.end], weights, keys, span, block_size, count)
        for span in spans
    ]


def _choose(
    q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, span: Span, block_size: int, count: int
) -> Choice:
    places = torch.arange(span.length, device=q.device)
    if span.blocks is None:
        slots = span.first + places
    else:
        slots = span.blocks[places // block_size] * block_size + places % block_size
    own, own_weights, new = q.float(), weights[span.begin : span.end], len(q)
    read = keys.index_select(0, slots).float().T
    before = span.length - new
    best: list[torch.Tensor] = []
    seen: list[torch.Tensor] = []
    step = max(1, _PIECE // span.length)
    for begin in range(0, new, step):
        piece = slice(begin, min(begin + step, new))
        scores = _scores(own[piece], own_weights[piece], read)
        scores[:, before:].masked_fill_(places[:new] > places[piece].unsqueeze(1), float("-inf"))  # the future
        top = scores.topk(count, dim=1, sorted=False)
        best.append(top.indices)
        seen.append(top.values > float("-inf"))
    return Choice(slots[torch.cat(best)], torch.cat(seen))


def _scores(q: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """q [n, heads, size], weights [n, heads], keys [size, m], all float32 -> [n, m]: the sum over heads of weight *
    relu(q . key). In tiles, as what each head says of each pair is many times what is kept (measured: 3x at 32 heads of
    128 and 32,768 keys, 7x at 16 of 24, against whole rows head by head)."""
    heads, size = q.shape[1:]
    scores = q.new_empty(len(q), keys.shape[1])
    rows = min(_TILE_ROWS, len(q))
    columns = max(1, (_TILE if q.device.type == "cpu" else _PIECE) // (rows * heads))
    for top in range(0, len(q), rows):
        own = weights[top : top + rows].unsqueeze(1)
        flat = q[top : top + rows].reshape(-1, size)
        for left in range(0, keys.shape[1], columns):
            each = torch.mm(flat, keys[:, left : left + columns]).relu_().view(len(own), heads, -1)
            scores[top : top + rows, left : left + columns] = torch.bmm(own, each).squeeze(1)
    return scores


def sparse_latent_attention(
    q: torch.Tensor,
    rows: torch.Tensor,
    rank: int,
    spans: list[Span],
    choices: list[Choice | None],
    block_size: int,
    scale: float,
) -> torch.Tensor:
    """As `latent_attention`, over the chosen tokens only; a span without a choice reads all of its past."""
    outputs: list[torch.Tensor] = []
    for span, choice in zip(spans, choices, strict=True):
        own = q[span.begin : span.end]
        if choice is None:
            alone = replace(span, begin=0, end=len(own))
            outputs.append(latent_attention(own, rows, rank, [alone], block_size, scale))
        else:
            outputs.append(_attend(own, rows, rank, choice, scale))
    return torch.cat(outputs)


def _attend(q: torch.Tensor, rows: torch.Tensor, rank: int, choice: Choice, scale: float) -> torch.Tensor:
    count = choice.slots.shape[1]
    step = max(1, _PIECE // (count * rows.shape[1]))
    outputs: list[torch.Tensor] = []
    for begin in range(0, len(q), step):
        piece = slice(begin, begin + step)
        read = rows[choice.slots[piece]]
        scores = torch.bmm(q[piece], read.transpose(1, 2)).float() * scale
        shares = scores.masked_fill(~choice.seen[piece].unsqueeze(1), float("-inf")).softmax(dim=-1)
        outputs.append(torch.bmm(shares.to(q.dtype), read[..., :rank]))
    return torch.cat(outputs)
