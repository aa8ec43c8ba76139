"""Decoding of GGUF storage types, bit for bit against the gguf library."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from stoker.models.weights import ggml
from stoker.models.weights.ggml import STORAGE, codes, decode

# where the float16 numbers of a block are that the library cannot write, only read
_HALVES = {12: (0, 2), 13: (0, 2), 14: (208,)}


def _stored(kind: int) -> tuple[torch.Tensor, np.ndarray]:
    """Random rows in a storage type, and the library's reading of them."""
    random = np.random.default_rng(kind)
    quantization = gguf.GGMLQuantizationType(kind)
    if kind in _HALVES:
        blocks = random.integers(0, 256, (10 * 3, STORAGE[kind].bytes), dtype=np.uint8)
        for place in _HALVES[kind]:
            blocks[:, place : place + 2] = random.normal(0, 2, (30, 1)).astype(np.float16).view(np.uint8)
        raw = blocks.reshape(10, -1)
    else:
        raw = gguf.quants.quantize(random.normal(0, 2, (10, 96)).astype(np.float32), quantization)
    return torch.from_numpy(raw.view(np.uint8)), gguf.quants.dequantize(raw, quantization)


@pytest.mark.parametrize("kind", STORAGE, ids=[storage.name for storage in STORAGE.values()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("slab", [1 << 20, 4 * 256], ids=["whole", "slabs"])
def test_decodes_like_the_library(kind: int, dtype: torch.dtype, slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ggml, "_SLAB", slab)
    raw, expected = _stored(kind)
    assert torch.equal(decode(raw, STORAGE[kind], dtype), torch.from_numpy(expected).to(dtype))


@pytest.mark.parametrize("kind", [2, 3, 12], ids=["Q4_0", "Q4_1", "Q4_K"])
def test_codes_are_the_same_matrix(kind: int) -> None:
    raw, expected = _stored(kind)
    found = codes(raw, STORAGE[kind])
    assert found is not None
    assert found.codes.max() <= 15
    per_value = [part.repeat_interleave(32, dim=1) for part in (found.scale, found.minimum)]
    rebuilt = found.codes * per_value[0] + per_value[1]
    torch.testing.assert_close(rebuilt, torch.from_numpy(expected), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", [0, 6, 8, 14], ids=["F32", "Q5_0", "Q8_0", "Q6_K"])
def test_types_without_codes_have_none(kind: int) -> None:
    assert codes(_stored(kind)[0], STORAGE[kind]) is None


def test_sizes_are_those_of_the_library() -> None:
    for kind, storage in STORAGE.items():
        quantization = gguf.GGMLQuantizationType(kind)
        assert (quantization.name, *gguf.GGML_QUANT_SIZES[quantization]) == storage
