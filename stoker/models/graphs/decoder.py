"""The frame that all our language models share: embedding, pre-norm blocks of attention and feed-forward, norm, head.

A family's module says which parts it is made of; the parts are modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from stoker.kernels.linear import Weight, linear
from stoker.kernels.norm import rms_norm
from stoker.kernels.rope import Turns
from stoker.models.context import CacheSpec, ForwardContext
from stoker.models.graphs.rotary import Rotary
from stoker.models.weights.checkpoint import Checkpoint


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


class DecoderConfig(Protocol):
    """What every family's parsed configuration says of the frame, under the names of config.json."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def hidden_size(self) -> int: ...

    @property
    def num_hidden_layers(self) -> int: ...

    @property
    def rms_norm_eps(self) -> float: ...

    @property
    def tie_word_embeddings(self) -> bool: ...


class Decoder:
    """A `Graph`."""

    def __init__(
        self, config: DecoderConfig, weights: Checkpoint, rotary: Rotary, block: Callable[[int, str], Block]
    ) -> None:
        """Takes all of the checkpoint: `block` loads a layer by its number and the name its tensors lie below. Raises
        ModelError if tensors are missing, misshapen or left over."""
        vocab_size, hidden = config.vocab_size, config.hidden_size
        self._blocks = [block(layer, f"model.layers.{layer}") for layer in range(config.num_hidden_layers)]
        self._rotary = rotary
        self._vocab_size = vocab_size
        self._epsilon = config.rms_norm_eps
        self._dtype = weights.dtype
        self._embedding = weights.tensor("model.embed_tokens.weight", (vocab_size, hidden))
        self._norm = weights.tensor("model.norm.weight", (hidden,))
        if config.tie_word_embeddings:
            self._head = Weight(self._embedding)  # as it is: a second layout would double the largest matrix
            if "lm_head.weight" in weights:
                weights.tensor("lm_head.weight", (vocab_size, hidden))  # some writers store the tied copy too
        else:
            self._head = weights.linear(["lm_head"], [vocab_size], hidden)
        weights.finish()

    @property
    def caches(self) -> Sequence[CacheSpec]:
        return [block.attention.cache for block in self._blocks]

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def vision(self) -> None:
        return None

    @torch.inference_mode()
    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        epsilon = self._epsilon
        turns = self._rotary.at(context.layout.positions, self._dtype)
        hidden = functional.embedding(token_ids, self._embedding)
        for part in context.layout.embedded:
            hidden[part.row : part.row + len(part.values)] = part.values
        for index, block in enumerate(self._blocks):
            added = block.attention(rms_norm(hidden, block.attention_norm, epsilon), turns, context, index)
            hidden = hidden + self._post(added, block.attention_post_norm)
            added = block.feed(rms_norm(hidden, block.feed_norm, epsilon))
            hidden = hidden + self._post(added, block.feed_post_norm)
        return rms_norm(hidden, self._norm, epsilon)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self._head).float()

    def _post(self, added: torch.Tensor, norm: torch.Tensor | None) -> torch.Tensor:
        return added if norm is None else rms_norm(added, norm, self._epsilon)


def ignore_drafts(weights: Checkpoint, layers: int, drafts: int) -> None:
    """Leaves out the `drafts` layers stored after the last of `layers`: they predict tokens further ahead (MTP)."""
    for index in range(layers, layers + drafts):
        weights.ignore(rf".*model\.layers\.{index}\..*")
