"""Which experts a token is sent to, and how much each of them counts.

Sigmoid scoring with a correction bias and groups is that of DeepSeek-V3 (2024), softmax scoring that of Qwen's models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Routing:
    """How scores become choices: the best `top_k` experts among those of the best `kept_groups` of `groups` groups.

    `normalise` makes a token's shares sum to one, before all are multiplied by `scale`.
    """

    scoring: Literal["sigmoid", "softmax"]
    top_k: int
    normalise: bool
    scale: float = 1.0
    groups: int = 1
    kept_groups: int = 1


def route(
    x: torch.Tensor, gate: torch.Tensor, correction: torch.Tensor | None, rule: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, hidden], gate [experts, hidden] float32, correction [experts] float32 -> (shares float32, experts int64),
    both [T, top_k].

    Scores are taken in float32 whatever the dtype of x, because rounding would change the choice. `correction` is added
    for the choice only; shares are the scores without it.
    """
    logits = functional.linear(x.float(), gate)
    scores = logits.sigmoid() if rule.scoring == "sigmoid" else logits.softmax(dim=-1)
    ranked = scores if correction is None else scores + correction
    if rule.kept_groups < rule.groups:
        ranked = _within_best_groups(ranked, rule)
    chosen = ranked.topk(rule.top_k, dim=-1).indices
    shares = scores.gather(1, chosen)
    if rule.normalise:
        shares = shares / (shares.sum(dim=-1, keepdim=True) + 1e-20)
    return shares * rule.scale, chosen


def _within_best_groups(ranked: torch.Tensor, rule: Routing) -> torch.Tensor:
    """Minus infinity outside the kept groups; a group is worth its two best experts."""
    grouped = ranked.unflatten(-1, (rule.groups, -1))
    worth = grouped.topk(2, dim=-1).values.sum(dim=-1)
    kept = torch.zeros_like(worth, dtype=torch.bool).scatter(
        1, worth.topk(rule.kept_groups, dim=-1).indices, value=True
    )
    return grouped.masked_fill(~kept.unsqueeze(-1), float("-inf")).flatten(-2)
