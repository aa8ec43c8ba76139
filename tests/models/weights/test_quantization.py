"""Checkpoints quantised by their makers: a model loads from each layout, and what no layout says is refused."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from stoker.kernels.quantized import Float8Blocks, Float8Rows, Int4Groups, Mxfp4, Quantized
from stoker.models.loader import load_graph
from stoker.models.source import ModelError, ModelFiles
from stoker.models.weights.checkpoint import Checkpoint
from stoker.models.weights.quantization import QuantizedSource, Scheme, take_scheme
from stoker.models.weights.safetensors import SafetensorsSource

Tensors = dict[str, torch.Tensor]
FP8 = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [32, 20],
    "modules_to_not_convert": ["lm_head"],
}  # fmt: skip
_WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "actorder": None}
INT4 = {
    "quant_method": "compressed-tensors", "format": "pack-quantized", "kv_cache_scheme": None, "ignore": ["lm_head"],
    "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": None, "weights": _WEIGHTS}},
}  # fmt: skip
MXFP4: dict[str, Any] = copy.deepcopy(INT4) | {"format": "mxfp4-pack-quantized"}
MXFP4["config_groups"]["group_0"]["weights"] |= {"type": "float", "scale_dtype": "torch.uint8"}
FP8_ROWS: dict[str, Any] = copy.deepcopy(INT4) | {"format": "float-quantized"}
FP8_ROWS["config_groups"]["group_0"] = {
    "targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "group_size": None},
    "input_activations": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True},
}
CONFIGS = {"fp8": FP8, "fp8 rows": FP8_ROWS, "int4": INT4, "mxfp4": MXFP4}
NAME = "model.layers.1.mlp.up_proj"


def _quantise(kind: str, name: str, matrix: torch.Tensor, random: torch.Generator) -> tuple[Tensors, Quantized]:
    """Random numbers of a matrix's shape, small enough that the model stays sane."""
    rows, columns = matrix.shape
    if kind == "fp8 rows":
        numbers = (torch.randn(rows, columns, generator=random) * 8).to(torch.float8_e4m3fn)
        scale = (torch.rand(rows, 1, generator=random) / 50).bfloat16()
        return {f"{name}.weight": numbers, f"{name}.weight_scale": scale}, Float8Rows(numbers, scale)
    if kind == "fp8":
        numbers = (torch.randn(rows, columns, generator=random) * 8).to(torch.float8_e4m3fn)
        scale = torch.rand(-(-rows // 32), -(-columns // 20), generator=random) / 50
        return {f"{name}.weight": numbers, f"{name}.weight_scale_inv": scale}, Float8Blocks(numbers, scale, (32, 20))
    packed_dtype = torch.int32 if kind == "int4" else torch.uint8
    size = columns // (8 if kind == "int4" else 2)
    info = torch.iinfo(packed_dtype)
    packed = torch.randint(info.min, info.max + 1, (rows, size), generator=random, dtype=packed_dtype)
    stored = {f"{name}.weight_packed": packed}
    if kind == "int4":
        scale = (torch.rand(rows, columns // 32, generator=random) / 20).bfloat16()
        stored |= {f"{name}.weight_scale": scale, f"{name}.weight_shape": torch.tensor([rows, columns])}
        return stored, Int4Groups(packed, scale)
    exponents = torch.randint(118, 122, (rows, columns // 32), generator=random, dtype=torch.uint8)
    return stored | {f"{name}.weight_scale": exponents}, Mxfp4(packed, exponents)


@pytest.fixture(scope="module", params=CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folders(kind: str, tiny_llama: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tiny model with random quantised matrices wherever whole groups fit, and the same values dense."""
    random = torch.Generator().manual_seed(3)
    root = tmp_path_factory.mktemp(kind)
    quantised, dense = root / "quantised", root / "dense"
    for folder in (quantised, dense):
        shutil.copytree(tiny_llama.root, folder)
    stored, plain = load_file(dense / "model.safetensors"), load_file(dense / "model.safetensors")
    for name, tensor in plain.items():
        base = name.removesuffix(".weight")
        if "_proj" in name and (kind.startswith("fp8") or tensor.shape[1] % 32 == 0):
            parts, matrix = _quantise(kind, base, tensor, random)
            del stored[name]
            stored |= parts
            plain[name] = matrix.dense(torch.float32)
    save_file(stored, quantised / "model.safetensors")
    save_file(plain, dense / "model.safetensors")
    config = json.loads((quantised / "config.json").read_text())
    (quantised / "config.json").write_text(json.dumps(config | {"quantization_config": CONFIGS[kind]}))
    return quantised, dense


def _source(kind: str, root: Path) -> QuantizedSource:
    scheme = take_scheme({"quantization_config": CONFIGS[kind]}, "here")
    assert isinstance(scheme, Scheme)
    return QuantizedSource(SafetensorsSource(root), scheme)


def test_the_same_matrices_under_their_own_names(kind: str, folders: tuple[Path, Path]) -> None:
    source, dense = _source(kind, folders[0]), SafetensorsSource(folders[1])
    assert source.names == dense.names
    kept = 0
    for name in dense.names:
        assert source.shape(name) == dense.shape(name)
        assert torch.equal(source.dense(name, torch.float32), dense.dense(name, torch.float32)), name
        kept += source.quantized(name) is not None
    assert kept >= 3


class _Alone:
    """A context in which every token sees itself only, by all of q, k and v."""

    layout = SimpleNamespace(positions=torch.arange(5), embedded=())

    def paged(self, layer: int) -> _Alone:
        return self

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        return (q * scale).tanh() + (k.tanh() + v).repeat_interleave(q.shape[1] // k.shape[1], dim=1)


def test_a_model_loads_and_computes_the_same(kind: str, folders: tuple[Path, Path]) -> None:
    graphs = [
        load_graph(
            ModelFiles(name="m", root=str(folder), gguf=None),
            dtype=torch.float32,
            device=torch.device("cpu"),
            progress=lambda stage, fraction: None,
        )
        for folder in folders
    ]
    quantised, dense = (graph.forward(torch.arange(5), _Alone()) for graph in graphs)  # type: ignore[arg-type]
    assert dense.std() > 0.1
    torch.testing.assert_close(quantised, dense, atol=1e-4, rtol=1e-4)


def test_it_stays_quantised_in_memory(kind: str, folders: tuple[Path, Path]) -> None:
    checkpoint = Checkpoint(_source(kind, folders[0]), torch.float32, torch.device("cpu"), lambda stage, fraction: None)
    weight = checkpoint.linear(["model.layers.0.self_attn.o_proj"], [48], 96)
    assert weight.dense is None
    assert [part.shape for part in weight.quantized] == [(48, 96)]


def test_without_its_configuration_it_is_refused(folders: tuple[Path, Path], tmp_path: Path) -> None:
    root = tmp_path / "bare"
    shutil.copytree(folders[0], root)
    config = json.loads((root / "config.json").read_text())
    del config["quantization_config"]
    (root / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"quantization_config|lacks the tensor"):
        load_graph(
            ModelFiles(name="m", root=str(root), gguf=None),
            dtype=torch.float32,
            device=torch.device("cpu"),
            progress=lambda stage, fraction: None,
        )


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("weight_packed", None, "lacks the tensor x.weight_packed"),
        ("weight_scale", None, "lacks the tensor x.weight_scale"),
        ("weight_scale", torch.ones(4, 3).bfloat16(), r"scales of \[4, 2\]"),
        ("weight_scale", torch.ones(4, 2, dtype=torch.uint8), r"x.weight_scale is torch.uint8"),
        ("weight_packed", torch.ones(4, 8, dtype=torch.uint8), r"x.weight_packed is uint8 \[4, 8\]"),
        ("weight_packed", torch.ones(4, 9, dtype=torch.int32), r"scales of \[4, 3\]"),
        ("weight_shape", torch.tensor([4, 65]), r"x.weight_shape says \[4, 65\], the numbers are \[4, 64\]"),
    ],
)
def test_halves_that_do_not_fit(tmp_path: Path, name: str, change: torch.Tensor | None, message: str) -> None:
    tensors = {
        "x.weight_packed": torch.ones(4, 8, dtype=torch.int32),
        "x.weight_scale": torch.ones(4, 2).bfloat16(),
        "x.weight_shape": torch.tensor([4, 64]),
    }
    if change is None:
        del tensors[f"x.{name}"]
    else:
        tensors[f"x.{name}"] = change
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        _source("int4", tmp_path).quantized("x.weight")


def _changed(base: dict[str, Any], **changes: object) -> dict[str, Any]:
    return copy.deepcopy(base) | changes


def _weights(base: dict[str, Any] = INT4, part: str = "weights", **changes: object) -> dict[str, Any]:
    config = copy.deepcopy(base)
    config["config_groups"]["group_0"][part] |= changes
    return config


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (_changed(FP8, quant_method="awq"), "quant_method = 'awq'"),
        (_changed(FP8, weight_block_size=None), "weight_block_size = None"),
        (_changed(FP8, fmt="e5m2"), "fmt = 'e5m2'"),
        (_changed(FP8, surprise=1), "quantization_config.surprise = 1"),
        (_changed(INT4, kv_cache_scheme={"num_bits": 8}), "kv_cache_scheme"),
        (_changed(INT4, sparsity_config={"format": "dense"}), "sparsity_config"),
        (_changed(INT4, format="marlin-24"), "marlin-24"),
        (_changed(INT4, config_groups={}), "config_groups"),
        (_weights(num_bits=8), "num_bits = 4"),
        (_weights(symmetric=False), "symmetric = True"),
        (_weights(strategy="channel"), "strategy = 'group'"),
        (_weights(actorder="group"), "actorder = 'group'"),
        (_weights(group_size=12), "groups of 12"),
        (_weights(FP8_ROWS, num_bits=4), "num_bits = 8"),
        (_weights(FP8_ROWS, strategy="tensor"), "strategy = 'channel'"),
        (_weights(FP8_ROWS, group_size=32), "groups of 32"),
        (_weights(FP8_ROWS, "input_activations", dynamic=False), "activations with scales of their own"),
        ("fp8", "must be an object"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(config: object, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        take_scheme({"quantization_config": config}, "here")


def test_the_configuration_of_a_model_with_vision_has_it_inside() -> None:
    config = {"text_config": {"quantization_config": INT4, "x": 1}}
    scheme = take_scheme(config, "here")
    assert scheme is not None
    assert scheme.group == (1, 32)
    assert config == {"text_config": {"x": 1}}
    assert take_scheme(config, "here") is None
