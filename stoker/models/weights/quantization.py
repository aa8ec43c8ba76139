"""Checkpoints whose matrices were quantised by their maker: what `quantization_config` says, and the tensors behind it.

A `Scheme` says how one kind of matrix `X.weight` is stored; `QuantizedSource` shows those matrices under their own
names. Which ones are quantised is read off the files: lists of exceptions in configurations name modules as the maker's
code does, and those names differ from the tensors'. What a scheme does not cover is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from stoker.kernels.quantized import MXFP4_GROUP, Float8Blocks, Float8Rows, Int4Groups, Mxfp4, Quantized
from stoker.models.source import ModelError
from stoker.models.weights.checkpoint import Codes, MissingTensorError, Source

Shape = tuple[int, ...]


class StoredSource(Source, Protocol):
    """A source that also gives tensors as they are in the file."""

    def stored(self, name: str) -> torch.Tensor: ...

    def kind(self, name: str) -> str:
        """Its type, as the format spells it."""
        ...


@dataclass(frozen=True, slots=True)
class Scheme:
    """`X.weight` is held in `X + numbers` and `X + scales`, and in `X + shape` where the format has that.

    A matrix [out, in] has numbers of [out, in / packed] in `dtype`, and a scale per `group` rows and columns; None is
    all columns.
    """

    numbers: str
    scales: str
    shape: str | None
    dtype: torch.dtype
    packed: int
    group: tuple[int, int | None]

    def matrix(self, numbers: torch.Tensor, scales: torch.Tensor) -> Quantized:
        rows, columns = self.group
        if self.dtype == torch.float8_e4m3fn:
            return Float8Rows(numbers, scales) if columns is None else Float8Blocks(numbers, scales, (rows, columns))
        return Int4Groups(numbers, scales) if self.dtype == torch.int32 else Mxfp4(numbers, scales)


_FLOAT8 = Scheme(".weight", ".weight_scale_inv", None, torch.float8_e4m3fn, 1, (128, 128))
_FLOAT8_ROWS = Scheme(".weight", ".weight_scale", None, torch.float8_e4m3fn, 1, (1, None))
_INT4 = Scheme(".weight_packed", ".weight_scale", ".weight_shape", torch.int32, 8, (1, 32))
_MXFP4 = Scheme(".weight_packed", ".weight_scale", None, torch.uint8, 2, (1, MXFP4_GROUP))
# keys that change nothing of what is stored, or how activations are quantised by engines that do that
_INERT = {
    "activation_scheme", "dequantize", "fmt", "format", "global_compression_ratio", "ignore", "ignored_layers",
    "modules_to_not_convert", "quant_method", "quantization_status", "scale_fmt", "version",
}  # fmt: skip
_INERT_WEIGHTS = {"block_structure", "dynamic", "observer", "observer_kwargs", "scale_dtype", "zp_dtype"}


def take_scheme(config: dict[str, Any], where: str) -> Scheme | None:
    """Takes `quantization_config` out of a configuration and says what it means, None where nothing is quantised.

    Graphs never see it. Raises ModelError naming what is not known.
    """
    nested: dict[str, Any] = config.get("text_config") or {}
    inner, outer = nested.pop("quantization_config", None), config.pop("quantization_config", None)
    found = outer or inner
    if not found:
        return None
    if not isinstance(found, dict):
        raise ModelError(f"{where}: quantization_config must be an object")
    values = dict(found)
    method = values.get("quant_method")
    if method == "fp8":
        block = values.pop("weight_block_size", None)
        scheme = _FLOAT8
        if not (isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) and n > 0 for n in block)):
            raise ModelError(f"{where}: fp8 with weight_block_size = {block!r} is not supported, only blocks")
        if values.get("fmt", "e4m3") != "e4m3":
            raise ModelError(f"{where}: fp8 with fmt = {values['fmt']!r} is not supported, only e4m3")
        scheme = replace(scheme, group=(block[0], block[1]))
    elif method == "compressed-tensors":
        scheme = _compressed(values, where)
    else:
        raise ModelError(f"{where}: quant_method = {method!r} is not supported, only fp8 and compressed-tensors")
    for key, value in values.items():
        if key not in _INERT and value not in (None, False, {}, []):
            raise ModelError(f"{where}: quantization_config.{key} = {value!r} is not supported")
    return scheme


def _compressed(values: dict[str, Any], where: str) -> Scheme:
    """Takes the groups out of a compressed-tensors configuration: one, of 4-bit weights in groups or 8-bit in rows.

    Activations that engines may quantise as they go need nothing from the files; others are refused.
    """
    groups = values.pop("config_groups", None)
    if not isinstance(groups, dict) or len(groups) != 1:
        raise ModelError(
            f"{where}: compressed-tensors with {groups!r} as config_groups is not supported, only one group"
        )
    group: dict[str, Any] = next(iter(groups.values()))
    weights: dict[str, Any] = dict(group.get("weights") or {})
    activations: dict[str, Any] = group.get("input_activations") or {"dynamic": True}
    if activations.get("dynamic") is not True or group.get("output_activations"):
        raise ModelError(f"{where}: activations with scales of their own in config_groups are not supported")
    kind = (group.get("format") or values.get("format"), weights.pop("type", None))
    size = weights.pop("group_size", None)
    rows = kind == ("float-quantized", "float")
    expected = {"num_bits": 8 if rows else 4, "strategy": "channel" if rows else "group", "symmetric": True}
    for key, value in expected.items():
        if weights.pop(key, None) != value:
            raise ModelError(f"{where}: weights of format and type {kind!r} are supported only with {key} = {value!r}")
    for key, value in weights.items():
        if key not in _INERT_WEIGHTS and value not in (None, False):
            raise ModelError(f"{where}: quantised weights with {key} = {value!r} are not supported")
    if rows and size is None:
        return _FLOAT8_ROWS
    if kind == ("pack-quantized", "int") and isinstance(size, int) and size > 0 and size % 8 == 0:
        return replace(_INT4, group=(1, size))
    if kind == ("mxfp4-pack-quantized", "float") and size == MXFP4_GROUP:
        return _MXFP4
    raise ModelError(f"{where}: weights of format and type {kind!r} in groups of {size!r} are not supported")


class QuantizedSource:
    """`source` with its quantised matrices under their own names, checked when they are read."""

    def __init__(self, source: StoredSource, scheme: Scheme) -> None:
        self.where = source.where
        self._source = source
        self._scheme = scheme
        names = source.names
        ends = (scheme.numbers, scheme.scales, scheme.shape)
        bases = {name[: -len(scheme.scales)] for name in names if name.endswith(scheme.scales)} | {
            name[: -len(scheme.numbers)]
            for name in names
            if name.endswith(scheme.numbers) and (scheme.numbers != ".weight" or source.kind(name) == "F8_E4M3")
        }
        self._parts = {
            f"{base}.weight": [base + end for end in ends if end is not None and base + end in names] for base in bases
        }
        self.names = names.difference(*self._parts.values()) | self._parts.keys()

    def shape(self, name: str) -> Shape:
        base = self._base(name)
        if base is None:
            return self._source.shape(name)
        stored = self._source.shape(self._half(base, self._scheme.numbers))
        return (*stored[:-1], stored[-1] * self._scheme.packed) if stored else stored

    def size(self, name: str) -> int:
        return sum(map(self._source.size, self._parts.get(name, (name,))))

    def check(self, name: str) -> None:
        if self.quantized(name) is None:
            self._source.check(name)

    def fetch(self, name: str, idle: Callable[[], None]) -> None:
        for part in self._parts.get(name, (name,)):
            self._source.fetch(part, idle)

    def dense(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        matrix = self.quantized(name)
        return self._source.dense(name, dtype) if matrix is None else matrix.dense(dtype)

    def codes(self, name: str) -> Codes | None:
        return self._source.codes(name)

    def quantized(self, name: str) -> Quantized | None:
        base = self._base(name)
        if base is None:
            return None
        scheme, shape = self._scheme, self.shape(name)
        numbers, scales = (self._source.stored(self._half(base, end)) for end in (scheme.numbers, scheme.scales))
        if numbers.dtype != scheme.dtype or len(shape) != 2:
            found = f"{numbers.dtype} {list(numbers.shape)}".removeprefix("torch.")
            raise ModelError(
                f"{self.where}: the tensor {base}{scheme.numbers} is {found}, not a matrix of {scheme.dtype}"
            )
        rows, columns = (-(-size // (group or max(size, 1))) for size, group in zip(shape, scheme.group, strict=True))
        kinds = {torch.uint8} if scheme.dtype == torch.uint8 else {torch.float32, torch.bfloat16, torch.float16}
        if tuple(scales.shape) != (rows, columns) or scales.dtype not in kinds:
            raise ModelError(
                f"{self.where}: the tensor {base}{scheme.scales} is {scales.dtype} {list(scales.shape)}, a matrix "
                f"{list(shape)} in groups of {list(scheme.group)} has scales of [{rows}, {columns}]"
            )
        group = scheme.group[1]
        if scheme.packed > 1 and group is not None and shape[1] % group:
            raise ModelError(f"{self.where}: {shape[1]} columns of {name} are not whole groups of {group}")
        self._check_shape(base, shape)
        return scheme.matrix(numbers, scales)

    def _half(self, base: str, end: str) -> str:
        if base + end not in self._source.names:
            raise MissingTensorError(self.where, base + end)
        return base + end

    def _base(self, name: str) -> str | None:
        return name.removesuffix(".weight") if name in self._parts else None

    def _check_shape(self, base: str, shape: Shape) -> None:
        """Where the format repeats the shape as a tensor of its own it must agree."""
        name = base + self._scheme.shape if self._scheme.shape else None
        if name is not None and name in self._source.names:
            said = self._source.stored(name)
            if not said.is_meta and tuple(said.tolist()) != shape:
                raise ModelError(f"{self.where}: {name} says {said.tolist()}, the numbers are {list(shape)}")
