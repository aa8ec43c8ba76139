"""Root-mean-square normalisation (Zhang and Sennrich, 2019), alone or of a sum."""

from __future__ import annotations

import torch
from torch.nn import functional

from stoker.kernels.native import rows


def rms_norm(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """x [..., hidden], weight [hidden] -> x / sqrt(mean(x^2) + epsilon) * weight, each row on its own."""
    if x.dtype == weight.dtype and (native := rows.library_for(x)) and _dense_rows(x):
        return rows.norm(native, native.best, x, weight, epsilon)
    return rms_norm_plain(x, weight, epsilon)


def add_rms_norm(
    x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """x and added [T, hidden] -> (x + added, the norm of that sum as it is in its dtype)."""
    if x.dtype == added.dtype == weight.dtype and x.is_contiguous() and added.is_contiguous() and x.dim() == 2:
        native = rows.library_for(x)
        if native is not None:
            return rows.add_norm(native, native.best, x, added, weight, epsilon)
    total = x + added
    return total, rms_norm_plain(total, weight, epsilon)


def rms_norm_plain(x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    """`rms_norm` in plain torch: the native kernel's twin."""
    return functional.rms_norm(x, weight.shape, weight, epsilon)


def _dense_rows(x: torch.Tensor) -> bool:
    return x.dim() == 2 or (x.dim() == 3 and x.stride(1) == x.shape[2])
