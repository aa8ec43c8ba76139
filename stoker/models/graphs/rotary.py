"""Rotary positions as a configuration asks for them: which dimensions turn how fast, how long contexts stretch them.

The rotation itself is a kernel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import torch

from stoker.kernels.rope import Turns, turns


class Llama3Scaling(msgspec.Struct, frozen=True, tag_field="rope_type", tag="llama3", forbid_unknown_fields=True):
    """Long wavelengths are stretched by `factor`, short ones kept, with a ramp between (the Llama 3.1 release)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


class LinearScaling(msgspec.Struct, frozen=True, tag_field="rope_type", tag="linear", forbid_unknown_fields=True):
    """All positions are divided by `factor`."""

    factor: float


class YarnScaling(msgspec.Struct, frozen=True, tag_field="rope_type", tag="yarn", forbid_unknown_fields=True):
    """YaRN (Peng et al., 2023): dimensions that turn more than `beta_fast` times within the original length are kept,
    those that turn less than `beta_slow` times stretched by `factor`, with a ramp between.

    `mscale` and `mscale_all_dim` are DeepSeek's: by the first cos and sin grow, by the second the softmax's scale.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    attention_factor: float | None = None
    truncate: bool = True


Scaling = Llama3Scaling | LinearScaling | YarnScaling


def spelled_anew(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with its rotary settings, in their old or new spelling, as `rope_theta`, `rope_scaling` (None,
    or tagged by `rope_type`) and `partial_rotary_factor`, each only if it is there."""
    values = dict(config)
    settings = {**(values.pop("rope_scaling", None) or {}), **(values.pop("rope_parameters", None) or {})}
    kind = settings.pop("rope_type", settings.get("type", "default"))
    settings.pop("type", None)
    for key in ("rope_theta", "partial_rotary_factor"):
        if key in settings:
            values[key] = settings.pop(key)
    values["rope_scaling"] = {"rope_type": kind, **settings} if kind != "default" or settings else None
    return values


def frequencies(dimensions: int, theta: float, scaling: Scaling | None) -> torch.Tensor:
    """Radians per position of each pair of `dimensions`, [dimensions / 2] float32."""
    exponents = torch.arange(0, dimensions, 2, dtype=torch.int64).float() / dimensions
    plain = 1.0 / theta**exponents
    if scaling is None:
        return plain
    if isinstance(scaling, LinearScaling):
        return plain / scaling.factor
    if isinstance(scaling, YarnScaling):
        first = _pair_that_turns(scaling.beta_fast, dimensions, theta, scaling)
        last = _pair_that_turns(scaling.beta_slow, dimensions, theta, scaling)
        if scaling.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, dimensions - 1)
        stretched = ((torch.arange(dimensions // 2) - first) / (last - first or 0.001)).clamp(0, 1)
        return torch.lerp(plain, plain / scaling.factor, stretched)
    times = scaling.original_max_position_embeddings * plain / (2 * math.pi)
    ramp = (times - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    return torch.lerp(plain / scaling.factor, plain, ramp.clamp(0, 1))


def magnitude(scaling: Scaling | None) -> float:
    """By how much cos and sin grow."""
    if not isinstance(scaling, YarnScaling):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return _mscale(scaling.factor, scaling.mscale) / _mscale(scaling.factor, scaling.mscale_all_dim)
    return _mscale(scaling.factor, 1.0)


def softmax_factor(scaling: Scaling | None) -> float:
    """By how much the softmax's scale of latent attention grows."""
    if not isinstance(scaling, YarnScaling) or not scaling.mscale_all_dim:
        return 1.0
    return _mscale(scaling.factor, scaling.mscale_all_dim) ** 2


def _pair_that_turns(times: float, dimensions: int, theta: float, scaling: YarnScaling) -> float:
    """The pair, as a real number, that turns so many times within the original length."""
    length = scaling.original_max_position_embeddings
    return dimensions * math.log(length / (times * 2 * math.pi)) / (2 * math.log(theta))


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


class RotaryConfig(Protocol):
    """The part of a parsed configuration that says how positions turn."""

    @property
    def rope_theta(self) -> float: ...

    @property
    def rope_scaling(self) -> Scaling | None: ...


@dataclass(frozen=True, slots=True)
class Rotary:
    """The rotation of one model; `frequencies` float32 lie on the model's device."""

    frequencies: torch.Tensor
    paired: bool = False
    magnitude: float = 1.0

    @classmethod
    def of(cls, config: RotaryConfig, dimensions: int, device: torch.device, *, paired: bool = False) -> Rotary:
        """The rotation of the first `dimensions` of each head."""
        turning = frequencies(dimensions, config.rope_theta, config.rope_scaling)
        return cls(turning.to(device), paired, magnitude(config.rope_scaling))

    @classmethod
    def none(cls, dimensions: int, device: torch.device) -> Rotary:
        """Of a model without positions (NoPE): the part of a head that others turn stays as it is."""
        return cls(torch.zeros(dimensions // 2, device=device))

    def at(self, positions: torch.Tensor, dtype: torch.dtype) -> Turns:
        return turns(positions, self.frequencies, dtype, paired=self.paired, magnitude=self.magnitude)
