"""What a person may type as a model, and what they are told when it is not there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import pytest

from stoker.models.source import ModelError, ModelFiles, resolve, shard_names


def find(model: str | Path, tmp_path: Path) -> ModelFiles:
    return resolve(str(model), revision=None, data_dir=tmp_path / "data", progress=lambda stage, fraction: None)


def test_demo_is_a_gguf_in_its_package(demo_files: ModelFiles) -> None:
    assert demo_files.name == "demo"
    assert demo_files.gguf is not None
    assert Path(demo_files.gguf).parent == Path(demo_files.root)
    assert Path(demo_files.gguf).stat().st_size > 90_000_000


def test_files_survive_json(demo_files: ModelFiles) -> None:
    assert msgspec.json.decode(msgspec.json.encode(demo_files), type=ModelFiles) == demo_files


def test_folder_and_file(tiny_llama: ModelFiles, demo_files: ModelFiles, tmp_path: Path) -> None:
    folder = find(tiny_llama.root, tmp_path)
    assert folder.root == tiny_llama.root
    assert folder.gguf is None
    file = find(str(demo_files.gguf), tmp_path)
    assert (file.gguf, file.root) == (demo_files.gguf, demo_files.root)
    assert find(demo_files.root, tmp_path) == file, "a folder with one .gguf means that file"


@pytest.mark.parametrize("gone", ["config.json", "tokenizer.json", "model.safetensors"])
def test_each_missing_file_is_named(tiny_llama: ModelFiles, tmp_path: Path, gone: str) -> None:
    root = tmp_path / "model"
    shutil.copytree(tiny_llama.root, root)
    (root / gone).unlink()
    with pytest.raises(ModelError) as error:
        find(root, tmp_path)
    assert str(root) in str(error.value)
    assert gone.removeprefix("model") in str(error.value)


def test_missing_shard_is_named(tiny_llama: ModelFiles, tmp_path: Path) -> None:
    root = tmp_path / "model"
    shutil.copytree(tiny_llama.root, root)
    shards = {"a": "model-1.safetensors", "b": "model-2.safetensors", "c": "model-1.safetensors"}
    (root / "model.safetensors").rename(root / "model-1.safetensors")
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    assert shard_names(root) == ["model-1.safetensors", "model-2.safetensors"]
    with pytest.raises(ModelError, match=r"1 of 2 weight files, the first is model-2\.safetensors"):
        find(root, tmp_path)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": {"a": "../x.safetensors"}}', '{"weight_map": 3}'])
def test_damaged_or_hostile_index(tiny_llama: ModelFiles, tmp_path: Path, index: str) -> None:
    root = tmp_path / "model"
    shutil.copytree(tiny_llama.root, root)
    (root / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelError, match=r"index\.json"):
        find(root, tmp_path)


def test_bad_paths(tmp_path: Path) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("no model")
    fake = tmp_path / "fake.gguf"
    fake.write_bytes(b"<html>")
    part = tmp_path / "big-00001-of-00003.gguf"
    part.write_bytes(b"GGUF")
    for path, words in [
        (tmp_path / "absent", "no model at"),
        (tmp_path / "absent.gguf", "no model at"),
        (text, "not a .gguf file"),
        (fake, "does not start like a GGUF"),
        (part, "split GGUF"),
    ]:
        with pytest.raises(ModelError) as error:
            find(path, tmp_path)
        assert words in str(error.value)
        assert path.name in str(error.value)
    with pytest.raises(ModelError, match="name the one to serve"):
        find(tmp_path, tmp_path)
