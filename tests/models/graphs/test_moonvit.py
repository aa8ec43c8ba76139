"""The eye of Kimi K2.5 against transformers, and what of its configuration is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from vision_model import HIDDEN, VISION_CONFIG, patches, reference_model, save

from stoker.models.context import Graph, Vision
from stoker.models.graphs.moonvit import parse_config
from stoker.models.loader import load_graph
from stoker.models.source import ModelError, ModelFiles

CPU = torch.device("cpu")
TOKENS = [(1, 1), (2, 3), (4, 4), (7, 2), (1, 9), (5, 8)]  # rows and columns; (4, 4) is as large as the learnt grid


@pytest.fixture(scope="module")
def reference() -> Any:
    return reference_model()


@pytest.fixture(scope="module")
def folder(reference: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("moonvit")
    save(reference, path)
    return path


def load(folder: Path) -> Graph:
    files = ModelFiles(name="tiny", root=str(folder), gguf=None)
    return load_graph(files, dtype=torch.float32, device=CPU, progress=lambda stage, fraction: None)


@pytest.fixture(scope="module")
def vision(folder: Path) -> Vision:
    found = load(folder).vision
    assert found is not None
    return found


@pytest.mark.parametrize(("rows", "columns"), TOKENS)
def test_the_same_features_as_transformers(reference: Any, vision: Vision, rows: int, columns: int) -> None:
    pixels = torch.randint(0, 256, (28 * rows, 28 * columns, 3), dtype=torch.uint8)
    values, grid = patches(pixels)
    with torch.no_grad():
        expected = reference.model.get_image_features(values, grid).pooler_output[0]
    found = vision.encode(pixels)
    assert found.shape == (rows * columns, HIDDEN)
    assert (found - expected).abs().max() < 1e-4
    assert expected.std() > 0.1  # there is something to compare


def test_a_tensor_too_few_and_one_too_many(reference: Any, tmp_path: Path) -> None:
    save(reference, tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "vision_tower.more": torch.zeros(1)}, path)
    with pytest.raises(ModelError, match=r"vision_tower\.more"):
        load(tmp_path)
    del tensors["mm_projector.pre_norm.bias"]
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"lacks the tensor mm_projector\.pre_norm\.bias"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"merge_type": "other"}, "merge_type"),
        ({"mm_projector_type": "mlp"}, "mm_projector_type"),
        ({"pos_emb_type": "rotary"}, "pos_emb_type"),
        ({"projector_hidden_act": "relu"}, "projector_hidden_act"),
        ({"text_hidden_size": 9}, "text_hidden_size"),
        ({"merge_kernel_size": [2, 1]}, "square"),
        ({"vt_num_attention_heads": 16}, "multiple of 4"),
        ({"window_size": 7}, "window_size"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        parse_config({**VISION_CONFIG, **change}, HIDDEN, "here")


def test_both_spellings_of_the_configuration(reference: Any) -> None:
    library = reference.config.vision_config.to_dict()
    assert parse_config(VISION_CONFIG, HIDDEN, "here") == parse_config(library, HIDDEN, "here")


def test_without_its_configuration_there_is_no_eye(reference: Any, tmp_path: Path) -> None:
    save(reference, tmp_path, vision_config=None)
    with pytest.raises(ModelError, match="35 tensors that"):
        load(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({name: tensor for name, tensor in tensors.items() if name.startswith("language_model.")}, path)
    assert load(tmp_path).vision is None
    save(reference, tmp_path, text_config=None)
    with pytest.raises(ModelError, match="needs a text_config"):
        load(tmp_path)
