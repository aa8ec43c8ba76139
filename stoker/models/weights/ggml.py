"""The storage types of GGUF tensors, decoded with torch. Formats as in the ggml project's quantisation blocks.

A quantised row is a run of blocks of 32 values: Q8_0 is a float16 scale and 32 int8; Q4_0 a float16 scale and 16
bytes; Q4_1 a float16 scale, a float16 minimum and 16 bytes. A byte holds value i low and value i + 16 high.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from stoker.models.weights.checkpoint import Codes

BLOCK = 32


class Storage(NamedTuple):
    """`bytes` hold `elements` consecutive values of a row."""

    name: str
    elements: int
    bytes: int


STORAGE = {
    0: Storage("F32", 1, 4),
    1: Storage("F16", 1, 2),
    2: Storage("Q4_0", BLOCK, 18),
    3: Storage("Q4_1", BLOCK, 20),
    8: Storage("Q8_0", BLOCK, 34),
    30: Storage("BF16", 1, 2),
}
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def decode(raw: torch.Tensor, storage: Storage, dtype: torch.dtype) -> torch.Tensor:
    """raw uint8 [rows, row bytes] -> [rows, values]: exact in float32, rounded once to another dtype."""
    rows = raw.shape[0]
    if storage.name in _PLAIN:
        return raw.view(_PLAIN[storage.name]).to(dtype)
    blocks = raw.view(-1, storage.bytes)
    if storage.name == "Q8_0":
        return (blocks[:, 2:].view(torch.int8) * _halves(blocks[:, :2])).to(dtype).view(rows, -1)
    scale, minimum, nibbles = _four_bit(blocks, storage)
    out = torch.empty(blocks.shape[0], 2, BLOCK // 2, dtype=dtype)
    for half, code in enumerate((nibbles & 15, nibbles >> 4)):
        if minimum is None:
            out[:, half] = (code.float() - 8) * scale
        else:
            out[:, half] = code * scale + minimum
    return out.view(rows, -1)


def codes(raw: torch.Tensor, storage: Storage) -> Codes | None:
    """The 4-bit codes of a Q4_0 or Q4_1 matrix as they are stored, None for other types."""
    if storage.name not in ("Q4_0", "Q4_1"):
        return None
    rows = raw.shape[0]
    scale, minimum, nibbles = _four_bit(raw.view(-1, storage.bytes), storage)
    both = torch.stack((nibbles & 15, nibbles >> 4), dim=1).view(rows, -1)
    lowest = -8 * scale if minimum is None else minimum
    return Codes(both, scale.view(rows, -1), lowest.view(rows, -1))


def _four_bit(blocks: torch.Tensor, storage: Storage) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor]:
    """Scale [blocks, 1], minimum [blocks, 1] or None, and the 16 bytes of codes [blocks, 16]."""
    if storage.name == "Q4_0":
        return _halves(blocks[:, :2]), None, blocks[:, 2:]
    return _halves(blocks[:, :2]), _halves(blocks[:, 2:4]), blocks[:, 4:]


def _halves(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.contiguous().view(torch.float16).float()
