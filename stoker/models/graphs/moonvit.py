"""MoonViT (Moonshot, 2025), the eye of Kimi K2.5: a transformer over patches of an image in its own proportions.

Positions enter twice: a learnt grid, resized to the image's own (bicubic, as NaViT's), is added to the patches; and
queries and keys turn in two dimensions, every other pair of values by the column, the rest by the row. What comes out
is merged, some patches square to a token, and projected to the language model's width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
from torch.nn import functional

from stoker.kernels.linear import Weight, linear
from stoker.kernels.rope import Turns, rotate
from stoker.models.graphs import config as configuration
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Checkpoint

EPSILON = 1e-5  # of the tower's norms; no configuration names it
THETA = 10_000.0

# The makers' names, and those that transformers has for the same.
_SPELLED = {
    "vt_hidden_size": "hidden_size",
    "vt_intermediate_size": "intermediate_size",
    "vt_num_attention_heads": "num_attention_heads",
    "vt_num_hidden_layers": "num_hidden_layers",
    "init_pos_emb_height": "pos_emb_height",
    "init_pos_emb_width": "pos_emb_width",
    "init_pos_emb_time": "pos_emb_time",
    "projector_ln_eps": "projection_layer_norm_eps",
}


class MoonViTConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What of `vision_config` decides the computation."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_hidden_layers: int
    patch_size: int
    merge_kernel_size: tuple[int, int]
    pos_emb_height: int
    pos_emb_width: int
    projection_layer_norm_eps: float


def parse_config(config: Mapping[str, Any], text_hidden: int, where: str) -> MoonViTConfig:
    """Raises ModelError naming what is missing, malformed or not supported."""
    width = config.get("vt_hidden_size", config.get("hidden_size"))
    parsed = configuration.parse(
        {_SPELLED.get(key, key): value for key, value in config.items()},
        MoonViTConfig,
        where,
        defaults={"merge_kernel_size": (2, 2), "projection_layer_norm_eps": 1e-5},
        fixed={
            "hidden_act": "gelu_pytorch_tanh",
            "merge_type": "sd2_tpool",
            "mm_hidden_size": width,
            "mm_projector_type": "patchmerger",
            "pos_emb_type": "divided_fixed",
            "projector_hidden_act": "gelu",
            "rope_scaling": {"rope_type": "axial"},
            "rope_theta": THETA,
            "text_hidden_size": text_hidden,
            "video_attn_type": "spatial_temporal",
        },
        inert={"_attn_implementation", "pos_emb_time"},  # time is of videos, which are not taken
    )
    if parsed.merge_kernel_size[0] != parsed.merge_kernel_size[1]:
        raise ModelError(f"{where}: merge_kernel_size = {list(parsed.merge_kernel_size)} must be square")
    if parsed.hidden_size % (4 * parsed.num_attention_heads):
        raise ModelError(f"{where}: heads of the vision tower must have a multiple of 4 dimensions")
    return parsed


@dataclass(frozen=True, slots=True)
class _Norm:
    """Mean and variance of each row (Ba et al., 2016)."""

    weight: torch.Tensor
    bias: torch.Tensor
    epsilon: float

    @classmethod
    def load(cls, weights: Checkpoint, name: str, size: int, epsilon: float) -> _Norm:
        return cls(weights.tensor(f"{name}.weight", (size,)), weights.tensor(f"{name}.bias", (size,)), epsilon)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.epsilon)


@dataclass(frozen=True, slots=True)
class _Block:
    """x + attention(norm(x)), then the same with the MLP. `qkv` gives queries, keys and values of all heads."""

    heads: int
    attention_norm: _Norm
    qkv: Weight
    out: Weight
    mlp_norm: _Norm
    up: Weight
    down: Weight

    @classmethod
    def load(cls, weights: Checkpoint, name: str, config: MoonViTConfig) -> _Block:
        hidden, inner = config.hidden_size, config.intermediate_size
        return cls(
            heads=config.num_attention_heads,
            attention_norm=_Norm.load(weights, f"{name}.norm0", hidden, EPSILON),
            qkv=weights.linear([f"{name}.wqkv"], [3 * hidden], hidden, bias=True),
            out=weights.linear([f"{name}.wo"], [hidden], hidden, bias=True),
            mlp_norm=_Norm.load(weights, f"{name}.norm1", hidden, EPSILON),
            up=weights.linear([f"{name}.mlp.fc0"], [inner], hidden, bias=True),
            down=weights.linear([f"{name}.mlp.fc1"], [hidden], inner, bias=True),
        )

    def __call__(self, x: torch.Tensor, turns: Turns) -> torch.Tensor:
        x = x + self._attention(self.attention_norm(x), turns)
        return x + linear(functional.gelu(linear(self.mlp_norm(x), self.up), approximate="tanh"), self.down)

    def _attention(self, x: torch.Tensor, turns: Turns) -> torch.Tensor:
        q, k, v = linear(x, self.qkv).unflatten(1, (3, self.heads, -1)).unbind(1)
        q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in (rotate(q, turns), rotate(k, turns), v))
        mixed = functional.scaled_dot_product_attention(q, k, v)
        return linear(mixed[0].transpose(0, 1).flatten(1), self.out)


class MoonViT:
    """A `Vision`. Takes its tensors from a checkpoint of the makers' names."""

    def __init__(self, config: Mapping[str, Any], text_hidden: int, weights: Checkpoint) -> None:
        """`config` is the model's vision_config. Raises ModelError if it is not supported or the weights do not fit."""
        parsed = parse_config(config, text_hidden, weights.where)
        hidden, patch, tower = parsed.hidden_size, parsed.patch_size, "vision_tower"
        self.hidden = text_hidden
        self._config = parsed
        self._dtype = weights.dtype
        self._device = weights.device
        embed = f"{tower}.patch_embed"
        kernel = weights.tensor(f"{embed}.proj.weight", (hidden, 3, patch, patch)).flatten(1)
        self._patches = Weight.of(kernel, weights.tensor(f"{embed}.proj.bias", (hidden,)))
        grid = (parsed.pos_emb_height, parsed.pos_emb_width, hidden)
        self._grid = weights.tensor(f"{embed}.pos_emb.weight", grid, torch.float32)
        self._blocks = [
            _Block.load(weights, f"{tower}.encoder.blocks.{index}", parsed) for index in range(parsed.num_hidden_layers)
        ]
        self._norm = _Norm.load(weights, f"{tower}.encoder.final_layernorm", hidden, EPSILON)
        merged = hidden * parsed.merge_kernel_size[0] ** 2
        self._project_norm = _Norm.load(weights, "mm_projector.pre_norm", hidden, parsed.projection_layer_norm_eps)
        self._project_in = weights.linear(["mm_projector.proj.0"], [merged], merged, bias=True)
        self._project_out = weights.linear(["mm_projector.proj.2"], [text_hidden], merged, bias=True)

    @torch.inference_mode()
    def encode(self, pixels: torch.Tensor) -> torch.Tensor:
        patch, merge = self._config.patch_size, self._config.merge_kernel_size[0]
        rows, columns = pixels.shape[0] // patch, pixels.shape[1] // patch
        x = pixels.to(self._device).to(torch.float32).sub_(127.5).div_(127.5).to(self._dtype)
        x = x.unflatten(1, (columns, patch)).unflatten(0, (rows, patch)).permute(0, 2, 4, 1, 3)
        x = linear(x.reshape(rows * columns, -1), self._patches) + self._positions(rows, columns)
        turns = self._turns(rows, columns)
        for block in self._blocks:
            x = block(x, turns)
        x = self._project_norm(self._norm(x))
        x = (
            x.unflatten(0, (rows // merge, merge, columns // merge, merge))
            .transpose(1, 2)
            .reshape(-1, merge**2 * x.shape[1])
        )
        return linear(functional.gelu(linear(x, self._project_in)), self._project_out)

    def _positions(self, rows: int, columns: int) -> torch.Tensor:
        """The learnt grid at rows x columns places, [rows * columns, hidden]."""
        grid = self._grid
        if grid.shape[:2] != (rows, columns):
            resized = functional.interpolate(grid.permute(2, 0, 1).unsqueeze(0), size=(rows, columns), mode="bicubic")
            grid = resized[0].permute(1, 2, 0)
        return grid.reshape(rows * columns, -1).to(self._dtype)

    def _turns(self, rows: int, columns: int) -> Turns:
        """Pair 2 i of a head turns by the column, pair 2 i + 1 by the row, both by theta^(-4 i / head size) a step."""
        size = self._config.hidden_size // self._config.num_attention_heads
        steps = THETA ** -(torch.arange(0, size, 4, dtype=torch.float32, device=self._device) / size)
        down, right = (torch.arange(count, dtype=torch.float32, device=self._device) for count in (rows, columns))
        places = torch.stack((right.expand(rows, columns), down.unsqueeze(1).expand(rows, columns)), dim=-1)
        angles = (places.reshape(-1, 1, 2) * steps.unsqueeze(1)).flatten(1)
        cos, sin = angles.cos(), angles.sin()
        both = torch.stack((cos, cos), dim=-1).flatten(1), torch.stack((-sin, sin), dim=-1).flatten(1)
        return Turns(both[0].unsqueeze(1).to(self._dtype), both[1].unsqueeze(1).to(self._dtype), paired=True)
