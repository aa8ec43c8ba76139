"""Published models without their weights: configuration, and type and shape of every tensor, from the makers' files.

One JSON file each, `{"config": ..., "tensors": {pattern: [type, shape]}}`. In a pattern `{3..77}` stands for each of
these numbers and `{gate,up}` for each of these words.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import msgspec

_CHOICE = re.compile(r"\{([^}]*)\}")


class Example(msgspec.Struct, frozen=True):
    """`tensors` by their full names, as safetensors headers have them."""

    config: dict[str, Any]
    tensors: dict[str, tuple[str, tuple[int, ...]]]


def names() -> list[str]:
    return sorted(file.name.removesuffix(".json") for file in files(__name__).iterdir() if file.name.endswith(".json"))


def read(name: str) -> Example:
    """Raises FileNotFoundError for a name that is not one of `names`."""
    packed = msgspec.json.decode((files(__name__) / f"{name}.json").read_bytes(), type=Example)
    tensors = {full: entry for pattern, entry in packed.tensors.items() for full in expand(pattern)}
    return Example(packed.config, tensors)


def expand(pattern: str) -> Iterator[str]:
    """All names that a pattern stands for."""
    parts = _CHOICE.split(pattern)
    choices = [_choices(part) if index % 2 else [part] for index, part in enumerate(parts)]
    return map("".join, itertools.product(*choices))


def _choices(text: str) -> list[str]:
    first, dots, last = text.partition("..")
    return [str(number) for number in range(int(first), int(last) + 1)] if dots else text.split(",")
