"""One layer of a decoder: attention, then a feed-forward part, each added to what came in.

Which attention and which feed-forward part, a family's module says; the parts are modules of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from stoker.kernels.norm import add_rms_norm, rms_norm
from stoker.kernels.rope import Turns
from stoker.models.context import CacheSpec, ForwardContext


class Attention(Protocol):
    """Mixes tokens; [T, hidden] -> [T, hidden]."""

    @property
    def cache(self) -> CacheSpec: ...

    def __call__(self, x: torch.Tensor, turns: Turns, context: ForwardContext, layer: int) -> torch.Tensor: ...


class FeedForward(Protocol):
    """Changes each token alone; [T, hidden] -> [T, hidden]."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Block:
    """x + attention(norm(x)), then the same with the feed-forward part; what is added may pass a norm of its own."""

    attention_norm: torch.Tensor
    attention: Attention
    feed_norm: torch.Tensor
    feed: FeedForward
    attention_post_norm: torch.Tensor | None = None
    feed_post_norm: torch.Tensor | None = None

    def __call__(
        self, hidden: torch.Tensor, turns: Turns, context: ForwardContext, layer: int, epsilon: float
    ) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; `layer` is the one whose cache it uses, `epsilon` that of its norms."""
        added = self.attention(rms_norm(hidden, self.attention_norm, epsilon), turns, context, layer)
        added = _post(added, self.attention_post_norm, epsilon)
        hidden, normed = add_rms_norm(hidden, added, self.feed_norm, epsilon)
        return hidden + _post(self.feed(normed), self.feed_post_norm, epsilon)


def _post(added: torch.Tensor, norm: torch.Tensor | None, epsilon: float) -> torch.Tensor:
    return added if norm is None else rms_norm(added, norm, epsilon)
