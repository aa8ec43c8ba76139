"""Weights over ranks: what is cut, what is on each, and what may not be cut."""

from __future__ import annotations

import pytest

from stoker.models.shards import Ranks, Shares, spread
from stoker.models.weights.described import DescribedSource
from stoker.models.weights.quantization import QuantizedSource, take_scheme

INT4 = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "config_groups": {
        "a": {"weights": {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 32}}
    },
}
EXPERT = "model.layers.1.mlp.experts"


def _dense(shapes: dict[str, tuple[int, ...]], ranks: Ranks, kv_heads: int | None = None) -> Shares:
    source = DescribedSource("here", {name: ("BF16", shape) for name, shape in shapes.items()})
    return spread(source, shapes, ranks, 8, kv_heads)


@pytest.mark.parametrize(
    ("name", "shape", "ranks", "expected"),
    [
        ("a.self_attn.q_proj.weight", (64, 40), Ranks(tp=4), 64 * 40 * 2 // 4),
        ("a.self_attn.q_proj.bias", (64,), Ranks(tp=4), 64 * 2 // 4),
        ("a.self_attn.o_proj.weight", (40, 64), Ranks(tp=4), 64 * 40 * 2 // 4),
        ("a.self_attn.o_proj.bias", (40,), Ranks(tp=4), 80),
        ("a.self_attn.kv_a_proj_with_mqa.weight", (64, 40), Ranks(tp=4), 64 * 40 * 2),
        ("a.input_layernorm.weight", (40,), Ranks(tp=8), 80),
        ("model.embed_tokens.weight", (30, 40), Ranks(tp=4), 8 * 40 * 2),
        ("a.self_attn.q_proj.weight", (64, 40), Ranks(ep=4), 64 * 40 * 2),
        ("a.self_attn.q_proj.weight", (64, 40), Ranks(cp=4), 64 * 40 * 2),
    ],
)
def test_one_tensor(name: str, shape: tuple[int, ...], ranks: Ranks, expected: int) -> None:
    assert _dense({name: shape}, ranks) == Shares(expected, [])


@pytest.mark.parametrize(("tp", "expected"), [(1, 1), (2, 2), (4, 2)])
def test_kv_heads_are_copied_where_there_are_more_ranks(tp: int, expected: int) -> None:
    assert _dense({"a.self_attn.k_proj.weight": (32, 40)}, Ranks(tp=tp), 2) == Shares(32 * 80 // expected, [])


@pytest.mark.parametrize(
    ("ranks", "cut"),
    [(Ranks(), 1), (Ranks(tp=4), 4), (Ranks(ep=4), 4), (Ranks(tp=4, ep=4), 4), (Ranks(tp=8, ep=4), 8)],
)
def test_experts_are_dealt_or_cut(ranks: Ranks, cut: int) -> None:
    shapes = {f"{EXPERT}.{index}.up_proj.weight": (64, 32) for index in range(4)}
    assert _dense(shapes, ranks) == Shares(4 * 64 * 32 * 2 // cut, [])


@pytest.mark.parametrize(
    ("shapes", "ranks", "kv_heads", "message"),
    [
        ({"a.mlp.up_proj.weight": (30, 8)}, Ranks(tp=4), None, "4 shards do not divide its 30 rows"),
        ({"a.mlp.down_proj.weight": (8, 30)}, Ranks(tp=4), None, "4 shards do not divide its 30 columns"),
        ({}, Ranks(tp=16), None, "tp = 16 does not divide 8 heads"),
        ({}, Ranks(tp=4), 3, "tp = 4 and 3 KV heads"),
        ({}, Ranks(tp=4, cp=3), None, "cp = 3 does not divide 4 ranks"),
        ({f"{EXPERT}.{index}.up_proj.weight": (8, 8) for index in range(3)}, Ranks(ep=2), None, "the 3 experts of"),
    ],
)
def test_what_does_not_divide_is_named(
    shapes: dict[str, tuple[int, ...]], ranks: Ranks, kv_heads: int | None, message: str
) -> None:
    (refused,) = _dense(shapes, ranks, kv_heads).refused
    assert message in refused


@pytest.mark.parametrize(("tp", "refused"), [(1, False), (2, False), (4, True)])
def test_a_shard_that_would_cut_a_quantisation_group(tp: int, refused: bool) -> None:
    name = f"{EXPERT}.0.down_proj"
    stored = {f"{name}.weight_packed": ("I32", (16, 8)), f"{name}.weight_scale": ("BF16", (16, 2))}
    scheme = take_scheme({"quantization_config": INT4}, "here")
    assert scheme is not None
    shares = spread(QuantizedSource(DescribedSource("here", stored), scheme), [f"{name}.weight"], Ranks(tp), 8, None)
    assert shares.bytes_per_rank == (16 * 32 + 16 * 4) // tp
    assert [f"{name}.weight: 4 shards of 64 columns" in text for text in shares.refused] == [True] * refused


def test_ranks() -> None:
    assert [(r.count, r.replicas) for r in (Ranks(), Ranks(8), Ranks(2, 8), Ranks(8, 8, 8), Ranks(1, 4, 2))] == [
        (1, 1),
        (8, 1),
        (8, 4),
        (8, 1),
        (4, 2),
    ]
