"""The short convolution with a memory against the same convolution over whole sequences."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.kernels.convolution import causal_convolution

CHANNELS = 5


def whole(x: torch.Tensor, weight: torch.Tensor, tail: torch.Tensor) -> torch.Tensor:
    """By its definition: each output is a weighted sum of the inputs up to its own."""
    taps = weight.shape[-1] - 1
    padded = torch.cat((tail.T, x))
    return torch.stack([(padded[t : t + taps + 1].T * weight).sum(-1) for t in range(len(x))])


@settings(max_examples=60, deadline=None)
@given(
    taps=st.integers(1, 4),
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 12), max_size=6),
    seed=st.integers(0, 1000),
)
def test_any_cut_of_any_batch(taps: int, lengths: list[int], cuts: list[int], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(CHANNELS, taps + 1, generator=draw)
    sequences = [torch.randn(length, CHANNELS, generator=draw) for length in lengths]
    tails = torch.randn(2 * len(lengths), CHANNELS, taps, generator=draw)
    began = tails.clone()
    slot = list(range(len(lengths)))
    found: list[list[torch.Tensor]] = [[] for _ in lengths]
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), 12], strict=True):
        rows = [row for row, length in enumerate(lengths) if min(end, length) > begin]
        if not rows:
            continue
        pieces = [sequences[row][begin:end] for row in rows]
        borders = [0]
        for piece in pieces:
            borders.append(borders[-1] + len(piece))
        targets = [(slot[row] + len(lengths)) % (2 * len(lengths)) for row in rows]
        before = tails.clone()
        out = causal_convolution(
            torch.cat(pieces), weight, tails, torch.tensor([slot[row] for row in rows]), torch.tensor(targets), borders
        )
        untouched = [other for other in range(len(tails)) if other not in targets]
        assert torch.equal(tails[untouched], before[untouched])
        for i, row in enumerate(rows):
            slot[row] = targets[i]
            found[row].append(out[borders[i] : borders[i + 1]])
    for row, sequence in enumerate(sequences):
        assert torch.allclose(torch.cat(found[row]), whole(sequence, weight, began[row]), atol=1e-6)
        assert torch.equal(tails[slot[row]], torch.cat((began[row], sequence.T), dim=-1)[:, -taps:])
