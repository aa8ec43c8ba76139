"""Headers of safetensors files, as the library writes them and as damage leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from stoker.models.source import ModelError
from stoker.models.weights.header import BITS, read_folder, read_header

KINDS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool, "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


def test_types_shapes_and_places(tmp_path: Path) -> None:
    tensors = {kind: torch.ones(3, 5).to(dtype) for kind, dtype in KINDS.items()}
    path = tmp_path / "model.safetensors"
    save_file(tensors, path, metadata={"format": "pt"})
    content, found = path.read_bytes(), read_folder(tmp_path)
    assert found.keys() == tensors.keys()
    for kind, tensor in tensors.items():
        stored = found[kind]
        assert (stored.dtype, stored.shape, stored.file) == (kind, (3, 5), path)
        assert content[stored.begin : stored.end] == bytes(tensor.view(torch.uint8).flatten().tolist())
        assert (stored.end - stored.begin) * 8 == 15 * BITS[kind]


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"x": torch.ones(1)}, tmp_path / name)
    with pytest.raises(ModelError, match=r"the tensor x twice, in a\.safetensors and b\.safetensors"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x05",
        (10**9).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (50).to_bytes(8, "little") + b"{}",
        (len(text := json.dumps({"x": {"dtype": "F32"}}).encode())).to_bytes(8, "little") + text,
        (len(text := json.dumps({"x": 3}).encode())).to_bytes(8, "little") + text,
    ],
)
def test_damage(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"model\.safetensors: it has no safetensors header"):
        read_header(path)
