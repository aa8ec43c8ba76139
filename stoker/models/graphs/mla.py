"""Multi-head latent attention (DeepSeek-V2, 2024): what all heads need of a token is one short latent vector.

Runs in the absorbed form: the matrices that would expand a latent into each head's key and value are multiplied into
the query before and the result after, so that the cache holds, and attention reads, the latent and one rotary key.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stoker.kernels.linear import Weight, linear
from stoker.kernels.norm import rms_norm
from stoker.kernels.rope import Turns, rotate
from stoker.models.context import ForwardContext, LatentSpec
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class LatentShape:
    """Shape of one layer's attention: ranks of the latents (`q_rank` None: queries come straight from the hidden
    state), and per head the dimensions of the plain key, the rotary key and the value.

    `epsilon` is that of the norms on the latents: the configuration's rms_norm_eps, as in the engines that serve these
    models; transformers takes 1e-6 whatever the configuration says.
    """

    heads: int
    q_rank: int | None
    kv_rank: int
    plain: int
    rotary: int
    value: int
    bias: bool
    epsilon: float
    scale: float


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """`down` gives what queries start from and, below it, the latent and the rotary key. `key_up` [heads, plain,
    kv_rank] and `value_up` [heads, kv_rank, value] are the two halves of kv_b_proj."""

    shape: LatentShape
    down: Weight
    q_norm: torch.Tensor | None
    q_up: Weight | None
    kv_norm: torch.Tensor
    key_up: torch.Tensor
    value_up: torch.Tensor
    output: Weight

    @classmethod
    def load(cls, weights: Checkpoint, name: str, hidden: int, shape: LatentShape) -> LatentAttention:
        """The tensors below `name`."""
        heads, rank = shape.heads, shape.kv_rank
        q_rows, kv_rows = heads * (shape.plain + shape.rotary), rank + shape.rotary
        first, first_rows = ("q_proj", q_rows) if shape.q_rank is None else ("q_a_proj", shape.q_rank)
        if shape.q_rank is None and shape.bias:
            raise ModelError(f"{weights.where}: attention_bias without q_lora_rank is not supported")
        down = weights.linear(
            [f"{name}.{first}", f"{name}.kv_a_proj_with_mqa"], [first_rows, kv_rows], hidden, bias=shape.bias
        )
        q_norm = q_up = None
        if shape.q_rank is not None:
            q_norm = weights.tensor(f"{name}.q_a_layernorm.weight", (shape.q_rank,))
            q_up = weights.linear([f"{name}.q_b_proj"], [q_rows], shape.q_rank)
        up = weights.tensor(f"{name}.kv_b_proj.weight", (heads * (shape.plain + shape.value), rank))
        key_up, value_up = up.view(heads, -1, rank).split([shape.plain, shape.value], dim=1)
        return cls(
            shape,
            down,
            q_norm,
            q_up,
            weights.tensor(f"{name}.kv_a_layernorm.weight", (rank,)),
            key_up,
            value_up.transpose(1, 2),
            weights.linear([f"{name}.o_proj"], [hidden], heads * shape.value, bias=shape.bias),
        )

    @property
    def cache(self) -> LatentSpec:
        return LatentSpec(rank=self.shape.kv_rank, rotary=self.shape.rotary)

    def __call__(self, x: torch.Tensor, turns: Turns, context: ForwardContext, layer: int) -> torch.Tensor:
        """[T, hidden] -> [T, hidden]; `turns` are those of the batch's positions."""
        start, latent, key = self.down_projected(x)
        return self.attended(start, latent, key, turns, context, layer)

    def down_projected(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What queries start from (their normed latent, or they themselves), the latent, and the rotary key."""
        shape, down = self.shape, linear(x, self.down)
        rest = shape.kv_rank + shape.rotary
        start, latent, key = down.split([down.shape[1] - rest, shape.kv_rank, shape.rotary], dim=1)
        if self.q_norm is not None:
            start = rms_norm(start, self.q_norm, shape.epsilon)
        return start, rms_norm(latent, self.kv_norm, shape.epsilon), key

    def attended(
        self,
        start: torch.Tensor,
        latent: torch.Tensor,
        key: torch.Tensor,
        turns: Turns,
        context: ForwardContext,
        layer: int,
        *,
        sparse: bool = False,
    ) -> torch.Tensor:
        """The rest of the way; `sparse` reads what the batch's last indexer chose."""
        shape, tokens = self.shape, len(start)
        q = start if self.q_up is None else linear(start, self.q_up)
        plain, rotary = q.reshape(tokens, shape.heads, -1).split([shape.plain, shape.rotary], dim=-1)
        absorbed = torch.bmm(plain.transpose(0, 1), self.key_up).transpose(0, 1)
        row = torch.cat((latent, rotate(key.unsqueeze(1), turns).squeeze(1)), dim=-1)
        query = torch.cat((absorbed, rotate(rotary, turns)), dim=-1)
        attended = context.latent(layer).attend(query, row, shape.scale, sparse=sparse)
        values = torch.bmm(attended.transpose(0, 1), self.value_up).transpose(0, 1)
        return linear(values.reshape(tokens, -1), self.output)
