"""How a model's weights spread over the ranks of a replica, and what may not be cut.

A replica has `max(tp, ep, cp)` ranks. Tensor parallelism cuts what heads and inner widths are computed from by rows and
what joins them again by columns, and the vocabulary by rows; everything else is on each rank. Expert parallelism gives
a rank whole experts; where there are more ranks than that the experts are cut too. Context parallelism cuts no weights.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction

import msgspec

from stoker.kernels.quantized import GroupCutError
from stoker.models.weights.checkpoint import Source

_EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.")
_BY_ROWS = re.compile(r".*\.((q|q_b|k|v|kv_b|b|f_b|g_b|gate|up|gate_up)_proj|[qkv]_conv1d|w1|w3)\.(weight|bias)")
_BY_COLUMNS = re.compile(r".*\.(o_proj|down_proj|w2)\.weight")
_KV = re.compile(r".*\.(k_proj|v_proj)\.(weight|bias)")
_VOCABULARY = re.compile(r"(.*\.)?(embed_tokens|lm_head)\.weight")


class Ranks(msgspec.Struct, frozen=True):
    """`tp`, `ep` and `cp` are the numbers of shards that heads, experts and contexts are cut into."""

    tp: int = 1
    ep: int = 1
    cp: int = 1

    @property
    def count(self) -> int:
        return max(self.tp, self.ep, self.cp)

    @property
    def replicas(self) -> int:
        """How many groups of ranks attend to sequences of their own."""
        return self.count // max(self.tp, self.cp)


class Shares(msgspec.Struct, frozen=True):
    """`bytes_per_rank` of weights on the fullest rank, as they are stored; `refused` are the cuts that cannot be."""

    bytes_per_rank: int
    refused: list[str]


def spread(source: Source, names: Iterable[str], ranks: Ranks, heads: int, kv_heads: int | None) -> Shares:
    """Where the tensors `names` of `source` come to lie. `kv_heads` is None where no layer has KV heads."""
    refused: dict[str, None] = {}
    for what, shards in (("tp", ranks.tp), ("ep", ranks.ep), ("cp", ranks.cp)):
        if ranks.count % shards:
            refused[f"{what} = {shards} does not divide {ranks.count} ranks"] = None
    if heads % ranks.tp:
        refused[f"tp = {ranks.tp} does not divide {heads} heads"] = None
    kv_shards = ranks.tp
    if kv_heads is not None:
        kv_shards = min(ranks.tp, kv_heads)
        if kv_heads % kv_shards or ranks.tp % kv_shards:
            refused[f"tp = {ranks.tp} and {kv_heads} KV heads do not divide"] = None
    experts: dict[str, set[int]] = {}
    known: dict[tuple[object, ...], Fraction] = {}
    counts: Counter[tuple[object, ...]] = Counter()
    for name in names:
        expert, shards, share = _EXPERT.match(name), ranks.tp, 1
        if expert is not None:
            experts.setdefault(expert[1], set()).add(int(expert[2]))
            if ranks.ep > 1:
                shards, share = ranks.count // ranks.ep, ranks.ep
        elif _KV.fullmatch(name):
            shards = kv_shards
        rule = 0 if _BY_ROWS.fullmatch(name) else 1 if _BY_COLUMNS.fullmatch(name) else None
        key = (name.rpartition(".")[0].rpartition(".")[2], source.shape(name), source.size(name), rule, shards, share)
        if key not in known:
            try:
                known[key] = _part(source, name, rule, shards) / share
            except GroupCutError as error:
                refused[f"{name}: {error}"] = None
                known[key] = Fraction(source.size(name), shards * share)
        counts[key] += 1
    for layer, indices in experts.items():
        if len(indices) % ranks.ep:
            refused[f"ep = {ranks.ep} does not divide the {len(indices)} experts of {layer}"] = None
            break
    total = sum((known[key] * count for key, count in counts.items()), Fraction(0))
    return Shares(math.ceil(total), list(refused))


def _part(source: Source, name: str, rule: int | None, shards: int) -> Fraction:
    """Bytes of the largest shard of a tensor. Raises GroupCutError."""
    size, shape = source.size(name), source.shape(name)
    if _VOCABULARY.fullmatch(name):
        return Fraction(size, shape[0]) * -(-shape[0] // shards)  # the last shard may be shorter
    if rule is None or shards == 1:
        return Fraction(size)
    matrix = source.quantized(name)
    if matrix is not None:
        return Fraction(matrix.part(rule, 0, shards).nbytes)
    if shape[rule] % shards:
        raise GroupCutError(f"{shards} shards do not divide its {shape[rule]} {('rows', 'columns')[rule]}")
    return Fraction(size, shards)
