"""Random ragged batches over paged keys and values, with the answer written out."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stoker.kernels.attention import Ragged


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    size: int
    block: int
    scale: float = 0.3


@dataclass
class Case:
    """Stores hold each sequence's past; what belongs to no token is NaN: whoever reads it is found out.

    q, k, v are slices of one matrix, as a graph has them. `expected` is computed in float64.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    batch: Ragged
    expected: torch.Tensor

    def stores(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Copies to write to."""
        return self.keys.clone(), self.values.clone()


def make(
    shape: Shape,
    sequences: list[tuple[int, int]],
    *,
    scattered: bool = True,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Case:
    """`sequences` are (new tokens, tokens in all) of each."""
    random = torch.Generator().manual_seed(seed)
    pages = [-(-length // shape.block) for _, length in sequences]
    blocks = torch.randperm(sum(pages) + 3, generator=random) if scattered else torch.arange(sum(pages) + 3)
    stored = (len(blocks) * shape.block, shape.kv_heads, shape.size)
    keys, values = (torch.full(stored, float("nan")).to(dtype) for _ in range(2))
    total = sum(new for new, _ in sequences)
    qkv = torch.randn(total, shape.heads + 2 * shape.kv_heads, shape.size, generator=random).to(dtype)
    q, k, v = qkv.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
    tables = torch.zeros(len(sequences), max(pages), dtype=torch.int64)
    starts, slots, expected = [0], [], []
    page = 0
    for row, ((new, length), count) in enumerate(zip(sequences, pages, strict=True)):
        own = blocks[page : page + count]
        tables[row, :count] = own
        places = (own[:, None] * shape.block + torch.arange(shape.block)).flatten()[:length]
        past = places[: length - new]
        for store in (keys, values):
            store[past] = torch.randn(len(past), *stored[1:], generator=random).to(dtype)
        rows = slice(starts[-1], starts[-1] + new)
        all_k, all_v = torch.cat((keys[past], k[rows])), torch.cat((values[past], v[rows]))
        expected.append(written_out(q[rows], all_k, all_v, shape.scale))
        slots.append(places[length - new :])
        starts.append(starts[-1] + new)
        page += count
    batch = Ragged(
        slots=torch.cat(slots),
        starts=starts,
        lengths=[length for _, length in sequences],
        tables=tables,
        host_tables=tables.numpy(),
        block_size=shape.block,
    )
    return Case(q, k, v, keys, values, batch, torch.cat(expected))


def written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """q [n, heads, d] are the last n of the tokens k, v [m, kv_heads, d]; float64 with an explicit mask."""
    group = q.shape[1] // k.shape[1]
    k, v = (part.double().repeat_interleave(group, dim=1) for part in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q.double(), k) * scale
    new, length = scores.shape[1:]
    future = torch.ones(new, length, dtype=torch.bool).triu(length - new + 1)
    return torch.einsum("hnm,mhd->nhd", scores.masked_fill(future, float("-inf")).softmax(-1), v).float()
