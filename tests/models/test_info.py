"""Model information from both kinds of files, and what the fingerprint does and does not depend on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from stoker.models.info import read_info
from stoker.models.source import ModelError, ModelFiles


@pytest.fixture
def copy(tiny_llama: ModelFiles, tmp_path: Path) -> ModelFiles:
    shutil.copytree(tiny_llama.root, tmp_path / "elsewhere")
    return ModelFiles(name="copy", root=str(tmp_path / "elsewhere"), gguf=None)


def edit(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_demo(demo_files: ModelFiles) -> None:
    info = read_info(demo_files)
    assert (info.name, info.architecture, info.context, info.vocab_size) == ("demo", "llama", 8192, 49152)
    assert info.eos_ids == (2,)


def test_folder(tiny_llama: ModelFiles) -> None:
    info = read_info(tiny_llama)
    assert (info.architecture, info.context, info.vocab_size) == ("llama", 1024, 504)
    assert info.eos_ids == (0, 2), "the union of config.json and generation_config.json"


def test_fingerprint_ignores_place_and_time(tiny_llama: ModelFiles, copy: ModelFiles) -> None:
    Path(copy.root, "model.safetensors").touch()
    assert read_info(copy).fingerprint == read_info(tiny_llama).fingerprint


def test_gguf_fingerprint(demo_files: ModelFiles, tmp_path: Path) -> None:
    path = tmp_path / "other-name.gguf"
    shutil.copyfile(str(demo_files.gguf), path)
    moved = ModelFiles(name="x", root=str(tmp_path), gguf=str(path))
    first = read_info(demo_files).fingerprint
    assert read_info(moved).fingerprint == first
    flip(path, path.stat().st_size - 1)
    assert read_info(moved).fingerprint != first


@pytest.mark.parametrize("place", [0, 1, 1000, 50_000, -1])
def test_any_weight_byte_of_a_small_file_counts(tiny_llama: ModelFiles, copy: ModelFiles, place: int) -> None:
    path = Path(copy.root, "model.safetensors")
    start = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    flip(path, start + place if place >= 0 else place)
    assert read_info(copy).fingerprint != read_info(tiny_llama).fingerprint


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json"])
def test_configuration_and_tokenizer_count(tiny_llama: ModelFiles, copy: ModelFiles, file: str) -> None:
    edit(Path(copy.root, file), added=1)
    assert read_info(copy).fingerprint != read_info(tiny_llama).fingerprint


def test_a_shorter_file_counts(tiny_llama: ModelFiles, copy: ModelFiles) -> None:
    path = Path(copy.root, "model.safetensors")
    path.write_bytes(path.read_bytes()[:-4096])
    assert read_info(copy).fingerprint != read_info(tiny_llama).fingerprint


def test_end_tokens_of_every_form(copy: ModelFiles) -> None:
    config, generation = Path(copy.root, "config.json"), Path(copy.root, "generation_config.json")
    edit(config, eos_token_id=[5, 3])
    edit(generation, eos_token_id=4)
    assert read_info(copy).eos_ids == (3, 4, 5)
    generation.unlink()
    edit(config, eos_token_id=None)
    assert read_info(copy).eos_ids == ()
    edit(config, text_config={"model_type": "inner", "vocab_size": 9, "n_positions": 7, "eos_token_id": 8})
    info = read_info(copy)
    assert (info.architecture, info.vocab_size, info.context, info.eos_ids) == ("inner", 9, 7, (8,))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": None}, "model_type"),
        ({"vocab_size": "many"}, "vocab_size"),
        ({"max_position_embeddings": 0}, "context length"),
        ({"eos_token_id": "</s>"}, "end token"),
    ],
)
def test_what_is_wrong_is_named(copy: ModelFiles, changes: dict[str, Any], words: str) -> None:
    edit(Path(copy.root, "config.json"), **changes)
    with pytest.raises(ModelError, match=words) as error:
        read_info(copy)
    assert copy.root in str(error.value)


def test_damaged_weights_are_named(copy: ModelFiles) -> None:
    Path(copy.root, "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError, match=r"model\.safetensors is not a whole"):
        read_info(copy)
