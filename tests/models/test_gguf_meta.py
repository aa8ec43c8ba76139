"""The GGUF header reader against the gguf library's own writer and reader."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from stoker.models.gguf_meta import read_metadata
from stoker.models.source import ModelError


@pytest.fixture
def small_gguf(tmp_path: Path) -> Path:
    path = tmp_path / "small.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float32("llama.rope.freq_base", 10000.0)
    writer.add_bool("tokenizer.ggml.add_bos_token", False)
    writer.add_int64("some.long", -(1 << 40))
    writer.add_array("tokenizer.ggml.tokens", ["a", "é😀", ""])
    writer.add_array("tokenizer.ggml.scores", [0.5, -1.5])
    writer.add_tensor("first", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.add_tensor("second", np.arange(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_reads_what_the_library_wrote(small_gguf: Path) -> None:
    metadata, tensors = read_metadata(small_gguf)
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.block_count"] == 3
    assert metadata["llama.rope.freq_base"] == 10000.0
    assert metadata["tokenizer.ggml.add_bos_token"] is False
    assert metadata["some.long"] == -(1 << 40)
    assert metadata["tokenizer.ggml.tokens"] == ["a", "é😀", ""]
    assert metadata["tokenizer.ggml.scores"] == [0.5, -1.5]
    assert tensors["first"].shape == (2, 3)
    assert tensors["second"].shape == (5,)
    content = small_gguf.read_bytes()
    first = np.frombuffer(content, np.float32, 6, tensors["first"].offset)
    second = np.frombuffer(content, np.float16, 5, tensors["second"].offset)
    assert first.tolist() == [0, 1, 2, 3, 4, 5]
    assert second.tolist() == [0, 1, 2, 3, 4]


def test_every_truncation_is_a_model_error(small_gguf: Path, tmp_path: Path) -> None:
    content = small_gguf.read_bytes()
    end = min(info.offset for info in read_metadata(small_gguf).tensors.values()) - 32
    cut = tmp_path / "cut.gguf"
    for size in range(0, end, 7):
        cut.write_bytes(content[:size])
        with pytest.raises(ModelError, match=r"cut\.gguf"):
            read_metadata(cut)
