"""Native kernels beside their twins in plain torch, in turns, on the sizes of the demo model.

`ok`: no native kernel is slower than its twin. Each call gets data of its own out of a working set that is larger than
the caches of a core, as the layers of a model do.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec
import torch

from bench import machine
from stoker.kernels.activation import silu_mul, silu_mul_plain
from stoker.kernels.attention import Ragged, paged_attention, paged_attention_plain
from stoker.kernels.native import library
from stoker.kernels.norm import add_rms_norm, rms_norm_plain
from stoker.kernels.rope import rotate, rotate_plain, turns

HEADS, KV_HEADS, SIZE, BLOCK = 9, 3, 64, 16
HIDDEN, INNER = 576, 1536
LAYERS = 8  # working sets that calls go through in turn
DTYPE = torch.bfloat16


@dataclass(frozen=True)
class Case:
    """The same work in both forms, for one of `LAYERS` working sets."""

    name: str
    native: Callable[[int], object]
    plain: Callable[[int], object]


class Figure(msgspec.Struct, kw_only=True):
    """Microseconds a call, medians of the rounds."""

    name: str
    native: float
    plain: float

    @property
    def ratio(self) -> float:
        return self.plain / self.native


def decode(sequences: int, length: int) -> Case:
    """One new token for each of `sequences` of `length` tokens, their blocks scattered over the pool."""
    return _attention(f"attention, {sequences} x 1 new of {length}", [(1, length)] * sequences)


def _attention(name: str, sequences: Sequence[tuple[int, int]]) -> Case:
    """`sequences` are (new tokens, tokens in all)."""
    random = torch.Generator().manual_seed(1)
    pages = max(-(-length // BLOCK) for _, length in sequences)
    blocks = torch.randperm(pages * len(sequences), generator=random)
    tables = blocks.view(len(sequences), pages)
    starts, slots = [0], []
    for row, (new, length) in enumerate(sequences):
        own = (tables[row][:, None] * BLOCK + torch.arange(BLOCK)).flatten()
        slots.append(own[length - new : length])
        starts.append(starts[-1] + new)
    batch = Ragged(
        slots=torch.cat(slots),
        starts=starts,
        lengths=[length for _, length in sequences],
        tables=tables,
        host_tables=tables.numpy(),
        block_size=BLOCK,
    )
    stores = [
        (torch.zeros(len(blocks) * BLOCK, KV_HEADS, SIZE, dtype=DTYPE).normal_(generator=random))
        for _ in range(2 * LAYERS)
    ]
    qkv = torch.randn(starts[-1], HEADS + 2 * KV_HEADS, SIZE, generator=random).to(DTYPE)
    q, k, v = qkv.split([HEADS, KV_HEADS, KV_HEADS], dim=1)
    return Case(
        name,
        lambda layer: paged_attention(q, k, v, stores[2 * layer], stores[2 * layer + 1], batch, SIZE**-0.5),
        lambda layer: paged_attention_plain(q, k, v, stores[2 * layer], stores[2 * layer + 1], batch, SIZE**-0.5),
    )


def norm(tokens: int) -> Case:
    """The norm of a sum, as between two parts of a layer."""
    pairs = [torch.randn(2, tokens, HIDDEN).to(DTYPE) for _ in range(LAYERS)]
    weight = torch.randn(HIDDEN).to(DTYPE)
    return Case(
        f"norm of a sum, {tokens} x {HIDDEN}",
        lambda layer: add_rms_norm(pairs[layer][0], pairs[layer][1], weight, 1e-5),
        lambda layer: rms_norm_plain(pairs[layer][0] + pairs[layer][1], weight, 1e-5),
    )


def gate(tokens: int) -> Case:
    inputs = [torch.randn(tokens, 2 * INNER).to(DTYPE) for _ in range(LAYERS)]
    return Case(
        f"gate, {tokens} x {INNER}",
        lambda layer: silu_mul(inputs[layer]),
        lambda layer: silu_mul_plain(inputs[layer]),
    )


def rotation(tokens: int) -> Case:
    heads = HEADS + KV_HEADS
    inputs = [torch.randn(tokens, heads + KV_HEADS, SIZE).to(DTYPE)[:, :heads] for _ in range(LAYERS)]
    turning = turns(torch.arange(tokens), torch.rand(SIZE // 2), DTYPE)
    return Case(
        f"rotation, {tokens} x {heads} x {SIZE}",
        lambda layer: rotate(inputs[layer], turning),
        lambda layer: rotate_plain(inputs[layer], turning),
    )


CASES: tuple[Callable[[], Case], ...] = (
    lambda: decode(32, 576),
    lambda: decode(8, 2000),
    lambda: decode(1, 640),
    lambda: decode(1, 8000),
    *(partial(kernel, tokens) for kernel in (norm, gate, rotation) for tokens in (32, 1024)),
)


def measure(case: Case, rounds: int) -> Figure:
    """Both forms in turns, each once through all working sets a round."""

    def timed(form: Callable[[int], object]) -> float:
        began = time.perf_counter()
        for layer in range(LAYERS):
            form(layer)
        return (time.perf_counter() - began) / LAYERS * 1e6

    timed(case.native)
    timed(case.plain)
    pairs = [(timed(case.native), timed(case.plain)) for _ in range(rounds)]
    native, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Figure(name=case.name, native=native, plain=plain)


@torch.inference_mode()
def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, help="torch's threads; all cores by default")
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    native = library.load()
    if isinstance(native, str):
        print(f"native kernels {native}", file=sys.stderr)
        return 1
    figures: list[Figure] = []
    for make in CASES:
        figure = measure(make(), args.rounds)
        figures.append(figure)
        print(f"{figure.name:34} native {figure.native:9.0f} us   torch {figure.plain:9.0f} us   {figure.ratio:5.2f}x")
    worst = min(figures, key=lambda figure: figure.ratio)
    threads = torch.get_num_threads()
    report = {
        "ok": worst.ratio >= 1,
        "figure": f"{native.best} on {threads} threads: at least {worst.ratio:.2f}x torch ({worst.name})",
        "machine": machine.describe(),
        "microseconds": [msgspec.to_builtins(figure) for figure in figures],
    }
    print(report["figure"])
    if args.json:
        args.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
