"""Short causal convolutions of a ragged batch, channel by channel, which go on where a sequence's last tokens left."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch.nn import functional


def causal_convolution(
    x: torch.Tensor,
    weight: torch.Tensor,
    tails: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    borders: Sequence[int],
) -> torch.Tensor:
    """y_t = sum over i of weight_i x_{t - taps + i}, each channel alone.

    x [T, channels], weight [channels, taps + 1]. `tails` [slots, channels, taps] hold the inputs before a sequence's
    next token: sequence b owns tokens [borders[b], borders[b + 1]), goes on from tails[sources[b]], and leaves its last
    inputs in tails[targets[b]]. No target is the source of another sequence. -> [T, channels]
    """
    taps = tails.shape[-1]
    before = tails.index_select(0, sources)
    if len(borders) == len(x) + 1:  # a batch that only decodes
        windows = torch.cat((before, x.unsqueeze(-1)), dim=-1)
        tails.index_copy_(0, targets, windows[..., 1:])
        return (windows * weight).sum(dim=-1)
    outputs: list[torch.Tensor] = []
    after = torch.empty_like(before)
    for row, (begin, end) in enumerate(pairwise(borders)):
        run = torch.cat((before[row], x[begin:end].transpose(0, 1)), dim=-1)
        after[row] = run[:, -taps:]
        outputs.append(functional.conv1d(run, weight.unsqueeze(1), groups=len(run)).transpose(0, 1))
    tails.index_copy_(0, targets, after)
    return torch.cat(outputs)
