"""A language model with an eye: one graph made of two parts that are built apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stoker.models.context import CacheSpec, ForwardContext, Graph, Mtp, Vision


class Seeing:
    """A `Graph`: `language`, whose context may bring what `vision` made of images."""

    def __init__(self, language: Graph, vision: Vision) -> None:
        self._language = language
        self._vision = vision

    @property
    def caches(self) -> Sequence[CacheSpec]:
        return self._language.caches

    @property
    def vocab_size(self) -> int:
        return self._language.vocab_size

    @property
    def vision(self) -> Vision:
        return self._vision

    @property
    def mtp(self) -> Sequence[Mtp]:
        return self._language.mtp

    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        return self._language.forward(token_ids, context)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._language.logits(hidden)
