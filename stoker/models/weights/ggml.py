"""The storage types of GGUF tensors, decoded with torch. Formats as in the ggml project's quantisation blocks.

A quantised row is a run of blocks. In one of 32 values scale and minimum are float16, code i lies in the low half of
byte i and code i + 16 in the high half, and the fifth bits are a little-endian word of 32. A K block of 256 values has
a float16 scale (and minimum) over sub-blocks that have small integer ones of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from stoker.models.weights.checkpoint import Codes

BLOCK = 32
K_BLOCK = 256
_SLAB = 1 << 16  # values decoded at once: what lies between stored bytes and result stays in the CPU's caches


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
    6: Storage("Q5_0", BLOCK, 22),
    7: Storage("Q5_1", BLOCK, 24),
    8: Storage("Q8_0", BLOCK, 34),
    12: Storage("Q4_K", K_BLOCK, 144),
    13: Storage("Q5_K", K_BLOCK, 176),
    14: Storage("Q6_K", K_BLOCK, 210),
    30: Storage("BF16", 1, 2),
}
_PLAIN = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def decode(raw: torch.Tensor, storage: Storage, dtype: torch.dtype) -> torch.Tensor:
    """raw uint8 [rows, row bytes] -> [rows, values]: exact in float32, rounded once to another dtype."""
    rows = raw.shape[0]
    if storage.name in _PLAIN:
        return raw.view(_PLAIN[storage.name]).to(dtype)
    blocks = raw.view(-1, storage.bytes)
    out = torch.empty(blocks.shape[0], storage.elements, dtype=dtype)
    slab = _SLAB // storage.elements
    for start in range(0, blocks.shape[0], slab):
        values = _DECODERS[storage.name](blocks[start : start + slab])
        out[start : start + slab] = values.flatten(1)
    return out.view(rows, -1)


def codes(raw: torch.Tensor, storage: Storage) -> Codes | None:
    """The 4-bit codes of a Q4_0, Q4_1 or Q4_K matrix as they are stored, None for other types."""
    rows, blocks = raw.shape[0], raw.view(-1, storage.bytes)
    if storage.name == "Q4_0":
        scale = _halves(blocks[:, :2])
        both, lowest = _nibbles(blocks[:, 2:], BLOCK // 2), -8 * scale
    elif storage.name == "Q4_1":
        both, scale, lowest = _nibbles(blocks[:, 4:], BLOCK // 2), _halves(blocks[:, :2]), _halves(blocks[:, 2:4])
    elif storage.name == "Q4_K":
        scale, least = _k_scales(blocks)
        both, lowest = _nibbles(blocks[:, 16:], BLOCK), -least
    else:
        return None
    return Codes(both.reshape(rows, -1), scale.reshape(rows, -1), lowest.reshape(rows, -1))


def _q4_0(blocks: torch.Tensor) -> torch.Tensor:
    return (_nibbles(blocks[:, 2:], 16).flatten(1).float() - 8) * _halves(blocks[:, :2])


def _q4_1(blocks: torch.Tensor) -> torch.Tensor:
    return _nibbles(blocks[:, 4:], 16).flatten(1) * _halves(blocks[:, :2]) + _halves(blocks[:, 2:4])


def _q5_0(blocks: torch.Tensor) -> torch.Tensor:
    code = _nibbles(blocks[:, 6:], 16).flatten(1) + 16 * _bits(blocks[:, 2:6])
    return (code.float() - 16) * _halves(blocks[:, :2])


def _q5_1(blocks: torch.Tensor) -> torch.Tensor:
    code = _nibbles(blocks[:, 8:], 16).flatten(1) + 16 * _bits(blocks[:, 4:8])
    return code * _halves(blocks[:, :2]) + _halves(blocks[:, 2:4])


def _q8_0(blocks: torch.Tensor) -> torch.Tensor:
    return blocks[:, 2:].view(torch.int8) * _halves(blocks[:, :2])


def _q4_k(blocks: torch.Tensor) -> torch.Tensor:
    scale, least = _k_scales(blocks)
    return _nibbles(blocks[:, 16:], BLOCK) * scale - least


def _q5_k(blocks: torch.Tensor) -> torch.Tensor:
    """As Q4_K; bit s of byte i of `fifth` belongs to value i of sub-block s."""
    scale, least = _k_scales(blocks)
    fifth = torch.stack([blocks[:, 16:48] >> part & 1 for part in range(8)], dim=1)
    return (_nibbles(blocks[:, 48:], BLOCK) + 16 * fifth) * scale - least


def _q6_k(blocks: torch.Tensor) -> torch.Tensor:
    """Sub-blocks of 16. Each half of 128 values: 64 bytes of low nibbles, 32 bytes of four upper pairs of bits."""
    low = _nibbles(blocks[:, :128], 64).view(-1, 2, 4, 32)
    upper = blocks[:, 128:192].view(-1, 2, 1, 32)
    high = torch.cat([upper >> shift & 3 for shift in (0, 2, 4, 6)], dim=2)
    code = (low + 16 * high).view(-1, 16, 16).float() - 32
    scale = _halves(blocks[:, 208:]) * blocks[:, 192:208].view(torch.int8)
    return code * scale[:, :, None]


_DECODERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


def _k_scales(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and what is subtracted, [blocks, 8, 1], of the sub-blocks of Q4_K and Q5_K.

    Twelve bytes hold 8 + 8 numbers of 6 bits: bytes 0-3 the first four scales and 4-7 the first four minima in their
    low 6 bits; bytes 8-11 the low nibbles of the last four of both, whose upper pairs of bits top bytes 0-3 and 4-7.
    """
    head, tail = blocks[:, 4:12], blocks[:, 12:16]
    scales = torch.cat((head[:, :4] & 63, tail & 15 | head[:, :4] >> 6 << 4), dim=1)
    minima = torch.cat((head[:, 4:] & 63, tail >> 4 | head[:, 4:] >> 6 << 4), dim=1)
    return (_halves(blocks[:, :2]) * scales)[:, :, None], (_halves(blocks[:, 2:4]) * minima)[:, :, None]


def _nibbles(packed: torch.Tensor, run: int) -> torch.Tensor:
    """uint8 [blocks, bytes] -> codes [blocks, runs, run]: each `run` bytes hold one run low and the next one high."""
    pairs = packed.reshape(packed.shape[0], -1, run)
    return torch.stack((pairs & 15, pairs >> 4), dim=2).flatten(1, 2)


def _bits(packed: torch.Tensor) -> torch.Tensor:
    """uint8 [blocks, bytes] -> its bits [blocks, 8 * bytes], lowest first."""
    return (packed[:, :, None] >> torch.arange(8, dtype=torch.uint8) & 1).flatten(1)


def _halves(pairs: torch.Tensor) -> torch.Tensor:
    return pairs.contiguous().view(torch.float16).float()
