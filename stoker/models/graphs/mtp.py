"""Multi-token prediction (DeepSeek-V3, 2024): layers behind the last one that guess further tokens, each one more.

A layer joins what the model has made of a position with the token that follows there, and makes of it what the next
token is read from. They are stored with a model and load only where they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional

from stoker.kernels.linear import Weight, linear
from stoker.kernels.norm import rms_norm
from stoker.models.context import CacheSpec, ForwardContext
from stoker.models.graphs.block import Block
from stoker.models.graphs.rotary import Rotary
from stoker.models.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class MtpLayer:
    """See `Mtp` for the contract. `layer` is its number behind the model's own, `embedding` and `head` are the model's
    unless the layer was stored with its own."""

    layer: int
    token_norm: torch.Tensor
    hidden_norm: torch.Tensor
    join: Weight
    block: Block
    norm: torch.Tensor
    embedding: torch.Tensor
    head: Weight
    rotary: Rotary
    epsilon: float

    @classmethod
    def load(
        cls,
        weights: Checkpoint,
        layer: int,
        block: Callable[[int, str], Block],
        embedding: torch.Tensor,
        head: Weight,
        rotary: Rotary,
        epsilon: float,
    ) -> MtpLayer:
        """The tensors of `layer`, of which `block` loads those that every layer has."""
        name, (vocab_size, hidden) = f"model.layers.{layer}", embedding.shape
        if f"{name}.embed_tokens.weight" in weights:
            embedding = weights.tensor(f"{name}.embed_tokens.weight", (vocab_size, hidden))
        if f"{name}.shared_head.head.weight" in weights:
            head = weights.linear([f"{name}.shared_head.head"], [vocab_size], hidden)
        return cls(
            layer=layer,
            token_norm=weights.tensor(f"{name}.enorm.weight", (hidden,)),
            hidden_norm=weights.tensor(f"{name}.hnorm.weight", (hidden,)),
            join=weights.linear([f"{name}.eh_proj"], [hidden], 2 * hidden),
            block=block(layer, name),
            norm=weights.tensor(f"{name}.shared_head.norm.weight", (hidden,)),
            embedding=embedding,
            head=head,
            rotary=rotary,
            epsilon=epsilon,
        )

    @property
    def cache(self) -> CacheSpec:
        return self.block.attention.cache

    @torch.inference_mode()
    def forward(self, token_ids: torch.Tensor, hidden: torch.Tensor, context: ForwardContext) -> torch.Tensor:
        turns = self.rotary.at(context.layout.positions, hidden.dtype)
        token = rms_norm(functional.embedding(token_ids, self.embedding), self.token_norm, self.epsilon)
        both = torch.cat((token, rms_norm(hidden, self.hidden_norm, self.epsilon)), dim=-1)
        joined = self.block(linear(both, self.join), turns, context, self.layer, self.epsilon)
        return rms_norm(joined, self.norm, self.epsilon)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return linear(hidden, self.head).float()
