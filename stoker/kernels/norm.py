"""Root-mean-square normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

import torch
from torch.nn import functional


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x [T, hidden], weight [hidden] -> x / sqrt(mean(x^2) + epsilon) * weight, each row on its own."""
    return functional.rms_norm(x, weight.shape, weight, epsilon)
