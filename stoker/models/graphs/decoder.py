"""The frame that all our language models share: embedding, pre-norm blocks of attention and feed-forward, norm, head.

A family's module says which parts it is made of; the parts are modules of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.nn import functional

from stoker.kernels.linear import Weight, linear
from stoker.kernels.norm import rms_norm
from stoker.models.context import CacheSpec, ForwardContext
from stoker.models.graphs.block import Block
from stoker.models.graphs.mtp import MtpLayer
from stoker.models.graphs.rotary import Rotary
from stoker.models.weights.checkpoint import Checkpoint


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
        self,
        config: DecoderConfig,
        weights: Checkpoint,
        rotary: Rotary,
        block: Callable[[int, str], Block],
        *,
        mtp_layers: int = 0,
    ) -> None:
        """Takes all of the checkpoint: `block` loads a layer by its number and the name its tensors lie below.
        `mtp_layers` are stored behind the last one, and left out unless `weights` are asked for them. Raises ModelError
        if tensors are missing, misshapen or left over."""
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
        self._mtp: list[MtpLayer] = []
        for layer in range(config.num_hidden_layers, config.num_hidden_layers + mtp_layers):
            if weights.mtp:
                parts = (self._embedding, self._head, rotary, config.rms_norm_eps)
                self._mtp.append(MtpLayer.load(weights, layer, block, *parts))
            else:
                weights.ignore(rf".*model\.layers\.{layer}\..*")
        weights.finish()

    @property
    def caches(self) -> Sequence[CacheSpec]:
        return [*(block.attention.cache for block in self._blocks), *(layer.cache for layer in self._mtp)]

    @property
    def vocab_size(self) -> int:
        return self._vocab_size

    @property
    def vision(self) -> None:
        return None

    @property
    def mtp(self) -> Sequence[MtpLayer]:
        return self._mtp

    @torch.inference_mode()
    def forward(self, token_ids: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        turns = self._rotary.at(context.layout.positions, self._dtype)
        hidden = functional.embedding(token_ids, self._embedding)
        for part in context.layout.embedded:
            hidden[part.row : part.row + len(part.values)] = part.values
        for index, block in enumerate(self._blocks):
            hidden = block(hidden, turns, context, index, self._epsilon)
        return rms_norm(hidden, self._norm, self._epsilon)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self._head).float()
