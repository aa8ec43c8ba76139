"""All that does not fit, found at once and without values; what fits is the same model that would load."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.models.loader import family_of
from stoker.models.source import ModelFiles
from stoker.models.weights.checkpoint import Source
from stoker.models.weights.described import DescribedSource
from stoker.models.weights.header import read_folder
from stoker.models.weights.quantization import QuantizedSource, take_scheme
from stoker.models.weights.survey import Findings, Survey

Tensors = dict[str, tuple[str, tuple[int, ...]]]
UP = "model.layers.1.mlp.up_proj"
FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [32, 32]}


@pytest.fixture
def config(tiny_llama: ModelFiles) -> dict[str, Any]:
    return json.loads((Path(tiny_llama.root) / "config.json").read_text())


@pytest.fixture
def tensors(tiny_llama: ModelFiles) -> Tensors:
    return {name: (stored.dtype, stored.shape) for name, stored in read_folder(Path(tiny_llama.root)).items()}


def _survey(config: dict[str, Any], tensors: Tensors) -> Findings:
    source: Source = DescribedSource("here", tensors)
    scheme = take_scheme(config, "here")
    if scheme is not None:
        source = QuantizedSource(DescribedSource("here", tensors), scheme)
    survey = Survey(source)
    family_of(config, "here").graph(survey)
    return survey.findings


def test_a_model_that_fits(config: dict[str, Any], tensors: Tensors) -> None:
    findings = _survey(config, tensors)
    assert sorted(findings.used) == sorted(tensors)
    assert (findings.missing, findings.unexpected, findings.misshapen) == ([], [], [])


def test_everything_wrong_at_once(config: dict[str, Any], tensors: Tensors) -> None:
    del tensors["model.norm.weight"], tensors[f"{UP}.weight"]
    tensors["extra.bias"] = ("F32", (3,))
    tensors["model.layers.0.input_layernorm.weight"] = ("F32", (47,))
    tensors["lm_head.weight"] = ("I8", tensors["lm_head.weight"][1])
    findings = _survey(config, tensors)
    assert sorted(findings.missing) == [f"{UP}.weight", "model.norm.weight"]
    assert findings.unexpected == ["extra.bias"]
    first, second = findings.misshapen
    assert first == "model.layers.0.input_layernorm.weight has [47], the configuration says [48]"
    assert "lm_head.weight is stored as I8" in second


def test_halves_of_quantised_matrices(config: dict[str, Any], tensors: Tensors) -> None:
    names = [f"model.layers.{index}.mlp.up_proj" for index in range(3)]
    for name in names:
        tensors[f"{name}.weight"] = ("F8_E4M3", (80, 48))
        tensors[f"{name}.weight_scale_inv"] = ("F32", (3, 2))
    config["quantization_config"] = FP8
    assert not _survey(config | {}, dict(tensors)).missing
    del tensors[f"{names[0]}.weight_scale_inv"], tensors[f"{names[1]}.weight"]
    tensors[f"{names[2]}.weight_scale_inv"] = ("F32", (2, 2))
    config["quantization_config"] = FP8
    findings = _survey(config, tensors)
    assert findings.missing == [f"{names[0]}.weight_scale_inv", f"{names[1]}.weight"]
    assert findings.unexpected == []
    assert len(findings.misshapen) == 1
    assert "scales of [3, 2]" in findings.misshapen[0]
