"""The published models we know by their headers weigh what their makers say."""

from __future__ import annotations

from math import prod

import pytest

from stoker.models import examples
from stoker.models.weights.header import BITS

GIB = {"kimi-k2.5": 554, "kimi-linear": 91, "glm-5": 1404}


@pytest.mark.parametrize("name", examples.names())
def test_weights_as_published(name: str) -> None:
    tensors = examples.read(name).tensors.values()
    assert round(sum(prod(shape) * BITS[kind] for kind, shape in tensors) / 8 / 2**30) == GIB[name]


def test_parameters_of_glm_5_with_its_draft_layer() -> None:
    assert round(sum(prod(shape) for _, shape in examples.read("glm-5").tensors.values()) / 1e9) == 754


def test_patterns() -> None:
    assert list(examples.expand("plain")) == ["plain"]
    assert list(examples.expand("a.{9..11}.{gate,up}")) == [f"a.{n}.{w}" for n in (9, 10, 11) for w in ("gate", "up")]


def test_an_unknown_name() -> None:
    with pytest.raises(FileNotFoundError):
        examples.read("nope")
