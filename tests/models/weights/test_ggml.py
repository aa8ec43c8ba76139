"""Decoding of GGUF storage types, bit for bit against the gguf library."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from stoker.models.weights.ggml import STORAGE, codes, decode


def _stored(kind: int) -> tuple[torch.Tensor, np.ndarray]:
    """Random rows in a storage type, and the library's reading of them."""
    values = np.random.default_rng(kind).normal(0, 2, (10, 96)).astype(np.float32)
    quantization = gguf.GGMLQuantizationType(kind)
    raw = gguf.quants.quantize(values, quantization)
    return torch.from_numpy(raw.view(np.uint8)), gguf.quants.dequantize(raw, quantization)


@pytest.mark.parametrize("kind", STORAGE, ids=[storage.name for storage in STORAGE.values()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_decodes_like_the_library(kind: int, dtype: torch.dtype) -> None:
    raw, expected = _stored(kind)
    assert torch.equal(decode(raw, STORAGE[kind], dtype), torch.from_numpy(expected).to(dtype))


@pytest.mark.parametrize("kind", [2, 3], ids=["Q4_0", "Q4_1"])
def test_codes_are_the_same_matrix(kind: int) -> None:
    raw, expected = _stored(kind)
    found = codes(raw, STORAGE[kind])
    assert found is not None
    assert found.codes.max() <= 15
    per_value = [part.repeat_interleave(32, dim=1) for part in (found.scale, found.minimum)]
    rebuilt = found.codes * per_value[0] + per_value[1]
    torch.testing.assert_close(rebuilt, torch.from_numpy(expected), atol=1e-6, rtol=1e-6)


def test_types_without_codes_have_none() -> None:
    assert codes(_stored(8)[0], STORAGE[8]) is None
