"""What makers store of a matrix that they quantised, and which values it then has: written from the formats, not from
our readers of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensors = dict[str, torch.Tensor]
Quantiser = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]
"""(name without `.weight`, matrix) -> (tensors by their stored names, values that they stand for)."""

INT4_WEIGHTS = {
    "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32, "actorder": None,
    "block_structure": None, "dynamic": False, "observer": "minmax", "observer_kwargs": {},
}  # fmt: skip


def compressed_tensors(style: str, activations: object = None, **weights: object) -> dict[str, Any]:
    """A `quantization_config` of that method: INT4 in groups unless `weights` say otherwise."""
    group = {"targets": ["Linear"], "input_activations": activations, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": style,
        "config_groups": {"group_0": {**group, "weights": INT4_WEIGHTS | weights}},
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "quantization_status": "compressed",
    }


def float8_blocks(block: tuple[int, int]) -> Quantiser:
    """One float32 scale per block of rows and columns, smaller blocks at the edges."""

    def quantise(name: str, matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
        rows, columns = matrix.shape
        numbers, values = torch.empty_like(matrix, dtype=torch.float8_e4m3fn), torch.empty_like(matrix)
        scale = torch.empty(-(-rows // block[0]), -(-columns // block[1]))
        for i in range(scale.shape[0]):
            for j in range(scale.shape[1]):
                area = slice(i * block[0], (i + 1) * block[0]), slice(j * block[1], (j + 1) * block[1])
                scale[i, j] = matrix[area].abs().max() / 448
                numbers[area] = (matrix[area] / scale[i, j]).to(torch.float8_e4m3fn)
                values[area] = numbers[area].float() * scale[i, j]
        return {f"{name}.weight": numbers, f"{name}.weight_scale_inv": scale}, values

    return quantise


def float8_rows(name: str, matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """One scale per row, rounded to bfloat16."""
    scale = (matrix.abs().amax(1, keepdim=True) / 440).bfloat16()  # 448, less what rounding may take from the scale
    numbers = (matrix / scale.float()).to(torch.float8_e4m3fn)
    return {f"{name}.weight": numbers, f"{name}.weight_scale": scale}, numbers.float() * scale.float()


def int4_groups(name: str, matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Eight numbers in an int32, the first lowest, each stored 8 higher; one bfloat16 scale per 32 in a row."""
    groups = matrix.view(len(matrix), -1, 32)
    scale = (groups.abs().amax(-1) / 7).bfloat16()
    codes = (groups / scale.float()[..., None]).round().clamp(-8, 7)
    eights = (codes.long() + 8).view(len(matrix), -1, 8)
    words = sum(eights[..., place] << 4 * place for place in range(8))
    assert isinstance(words, torch.Tensor)
    packed = torch.where(words >= 1 << 31, words - (1 << 32), words).int()
    shape = torch.tensor(matrix.shape, dtype=torch.int32)
    stored = {f"{name}.weight_packed": packed, f"{name}.weight_scale": scale, f"{name}.weight_shape": shape}
    return stored, (codes * scale.float()[..., None]).view(matrix.shape)


def mxfp4(name: str, matrix: torch.Tensor) -> tuple[Tensors, torch.Tensor]:
    """Two e2m1 numbers in a byte, the first lowest; one power of two per 32 in a row."""
    groups = matrix.view(len(matrix), -1, 32)
    powers = groups.abs().amax(-1).log2().floor() - 2
    numbers = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = torch.cat((numbers, -numbers))
    codes = (groups[..., None] / powers.exp2()[..., None, None] - numbers).abs().argmin(-1)
    values = (numbers[codes] * powers.exp2()[..., None]).view(matrix.shape)
    pairs = codes.view(len(matrix), -1, 2)
    packed = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
    return {f"{name}.weight_packed": packed, f"{name}.weight_scale": (powers + 127).to(torch.uint8)}, values
