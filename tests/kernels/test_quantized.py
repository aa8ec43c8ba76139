"""Each storage kind against a decoder written from the format's definition, number by number."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from stoker.kernels.linear import Weight, linear
from stoker.kernels.quantized import Float8Blocks, Float8Rows, GroupCutError, Int4Groups, Mxfp4, Quantized

ROWS, COLUMNS = 20, 96
BLOCK = (8, 40)  # neither divides the matrix: there are edge blocks


def _float8(byte: int) -> float:
    """e4m3fn: no infinities, all ones is not a number."""
    sign, exponent, mantissa = -1.0 if byte >> 7 else 1.0, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return math.nan
    return sign * (mantissa * 2.0**-9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10))


def _rounded(value: float) -> float:
    """To float32."""
    return struct.unpack("f", struct.pack("f", value))[0]


def _float8_blocks(random: torch.Generator) -> tuple[Quantized, torch.Tensor]:
    bytes_ = torch.randint(0, 256, (ROWS, COLUMNS), generator=random, dtype=torch.uint8)
    bytes_[bytes_ & 127 == 127] = 3
    scale = torch.rand(3, 3, generator=random)
    values = [
        [_rounded(_float8(int(bytes_[r, c])) * float(scale[r // BLOCK[0], c // BLOCK[1]])) for c in range(COLUMNS)]
        for r in range(ROWS)
    ]
    return Float8Blocks(bytes_.view(torch.float8_e4m3fn), scale, BLOCK), torch.tensor(values)


def _float8_rows(random: torch.Generator) -> tuple[Quantized, torch.Tensor]:
    bytes_ = torch.randint(0, 256, (ROWS, COLUMNS), generator=random, dtype=torch.uint8)
    bytes_[bytes_ & 127 == 127] = 3
    scale = torch.rand(ROWS, 1, generator=random).bfloat16()
    values = [[_rounded(_float8(int(byte)) * float(scale[r])) for byte in row] for r, row in enumerate(bytes_)]
    return Float8Rows(bytes_.view(torch.float8_e4m3fn), scale), torch.tensor(values)


def _int4_groups(random: torch.Generator) -> tuple[Quantized, torch.Tensor]:
    codes = torch.randint(0, 16, (ROWS, COLUMNS), generator=random).tolist()
    scale = torch.rand(ROWS, COLUMNS // 32, generator=random).bfloat16()
    words = [
        [sum(row[start + place] << 4 * place for place in range(8)) for start in range(0, COLUMNS, 8)] for row in codes
    ]
    signed = [[word - (1 << 32) if word >> 31 else word for word in row] for row in words]
    values = [[(code - 8) * float(scale[r, c // 32]) for c, code in enumerate(row)] for r, row in enumerate(codes)]
    return Int4Groups(torch.tensor(signed, dtype=torch.int32), scale), torch.tensor(values)


def _mxfp4(random: torch.Generator) -> tuple[Quantized, torch.Tensor]:
    codes = torch.randint(0, 16, (ROWS, COLUMNS), generator=random).tolist()
    exponents = torch.randint(100, 140, (ROWS, COLUMNS // 32), generator=random, dtype=torch.uint8)
    exponents[0, 0], exponents[1, 1] = 0, 254

    def number(code: int) -> float:
        sign, exponent, mantissa = -1.0 if code >> 3 else 1.0, code >> 1 & 3, code & 1
        return sign * (mantissa * 0.5 if exponent == 0 else (2 + mantissa) * 2.0 ** (exponent - 2))

    packed = [[row[place] | row[place + 1] << 4 for place in range(0, COLUMNS, 2)] for row in codes]
    values = [
        [number(code) * 2.0 ** (int(exponents[r, c // 32]) - 127) for c, code in enumerate(row)]
        for r, row in enumerate(codes)
    ]
    values = torch.tensor(values, dtype=torch.float64)
    return Mxfp4(torch.tensor(packed, dtype=torch.uint8), exponents), values.float()


KINDS = [_float8_blocks, _float8_rows, _int4_groups, _mxfp4]


@pytest.fixture(params=KINDS, ids=["float8 blocks", "float8 rows", "int4", "mxfp4"])
def stored(request: pytest.FixtureRequest) -> tuple[Quantized, torch.Tensor]:
    return request.param(torch.Generator().manual_seed(5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_values_are_those_of_the_format(stored: tuple[Quantized, torch.Tensor], dtype: torch.dtype) -> None:
    matrix, expected = stored
    assert matrix.shape == (ROWS, COLUMNS)
    assert torch.equal(matrix.dense(dtype), expected.to(dtype))


def test_every_float8_number() -> None:
    values = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).view(1, 256)
    decoded = Float8Blocks(values, torch.ones(1, 2)).dense(torch.float32)
    assert torch.equal(decoded.nan_to_num(9e9), torch.tensor([[_float8(byte) for byte in range(256)]]).nan_to_num(9e9))


def test_an_mxfp4_exponent_of_all_ones_is_not_a_number() -> None:
    matrix = Mxfp4(torch.full((1, 16), 0x11, dtype=torch.uint8), torch.full((1, 1), 255, dtype=torch.uint8))
    assert matrix.dense(torch.float32).isnan().all()


def test_fewer_bytes_than_dense(stored: tuple[Quantized, torch.Tensor]) -> None:
    assert stored[0].nbytes < ROWS * COLUMNS * 1.2


@pytest.mark.parametrize("rows", [1, 7, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_products(stored: tuple[Quantized, torch.Tensor], rows: int, biased: bool) -> None:
    """Two parts one above another, of which the second is the first again."""
    matrix, expected = stored
    random = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, COLUMNS, generator=random)
    bias = torch.randn(2 * ROWS, generator=random) if biased else None
    finite = expected.double().clamp(-1e4, 1e4)
    assert not matrix.dense(torch.float32).isnan().any()
    if isinstance(matrix, Mxfp4):  # its largest numbers leave float32 once they are added up
        matrix = Mxfp4(matrix.packed, matrix.exponents.clamp(100, 130))
        finite = matrix.dense(torch.float64)
    y = linear(x, Weight(None, bias, quantized=(matrix, matrix)))
    once = x.double() @ finite.T
    torch.testing.assert_close(
        y.double(), torch.cat((once, once), dim=1) + (0 if bias is None else bias), rtol=1e-4, atol=1e-3
    )


@pytest.mark.parametrize(("axis", "count"), [(0, 2), (0, 4), (1, 3)])
def test_shards_are_slices(axis: int, count: int) -> None:
    for kind in KINDS[1:]:
        matrix, expected = kind(torch.Generator().manual_seed(6))
        shards = [matrix.part(axis, index, count).dense(torch.float32) for index in range(count)]
        assert all(torch.equal(*pair) for pair in zip(shards, expected.chunk(count, axis), strict=True))


def test_shards_of_blocks() -> None:
    matrix, expected = Float8Blocks(torch.ones(16, 80).to(torch.float8_e4m3fn), torch.rand(2, 2), BLOCK), None
    expected = matrix.dense(torch.float32)
    for axis in (0, 1):
        shards = [matrix.part(axis, index, 2).dense(torch.float32) for index in range(2)]
        assert torch.equal(torch.cat(shards, dim=axis), expected)


@pytest.mark.parametrize(
    ("kind", "axis", "count"),
    [
        (_int4_groups, 1, 2),
        (_mxfp4, 1, 4),
        (_float8_blocks, 0, 2),
        (_float8_blocks, 1, 3),
        (_int4_groups, 0, 3),
        (_float8_rows, 1, 5),
    ],
)
def test_a_shard_that_would_cut_a_group_is_refused(kind: object, axis: int, count: int) -> None:
    assert callable(kind)
    matrix, _ = kind(torch.Generator().manual_seed(7))
    with pytest.raises(GroupCutError, match=f"{count} shards of {matrix.shape[axis]}"):
        matrix.part(axis, 0, count)
