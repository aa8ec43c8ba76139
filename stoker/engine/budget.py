"""How the token budget of one step is shared. Pure arithmetic: no pool, no clock.

Lanes go in order, but a higher lane leaves to each lower one what it is owed: its reserve, or enough for its decodes
(they cost next to nothing, and a stalled stream is felt), never more than a quarter of the budget. Within a lane
decodes go first; of the rest the oldest prefill gets at least half, so it always gets on, and the others share what
remains, shortest first, so that a one-line question does not wait for a long prompt.

Flaw: where a lane decodes more sequences than it has tokens in the budget, its prefills wait until some of them end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.types.lane import Lane


@dataclass(frozen=True, slots=True)
class Demand:
    """`tokens` that one sequence could compute now. `decode`: it is generating, so this is its one next token."""

    lane: Lane
    tokens: int
    decode: bool


def reserves(total: int, shares: tuple[float, float]) -> dict[Lane, int]:
    """What of `total` (tokens or slots) is kept for each lower lane: its share, at least 1, at most a quarter."""
    kept = {Lane.INTERACTIVE: 0}
    for lane, part in zip((Lane.STANDARD, Lane.BATCH), shares, strict=True):
        kept[lane] = min(max(1, round(part * total)), total // 4) if part > 0 else 0
    return kept


def share(budget: int, demands: Sequence[Demand], reserve: dict[Lane, int]) -> list[int]:
    """Tokens granted to each of `demands`, which are in arrival order within each lane. Wastes nothing: the sum is
    the smaller of `budget` and all that is asked for."""
    granted = [0] * len(demands)
    owed: dict[Lane, int] = {}
    for lane in Lane:
        mine = [d for d in demands if d.lane == lane]
        decodes = min(sum(d.decode for d in mine), budget // 4)
        owed[lane] = min(sum(d.tokens for d in mine), max(reserve[lane], decodes))
    left = budget
    for lane in Lane:
        limit = left - sum(owed[lower] for lower in Lane if lower > lane)
        decodes = [i for i, d in enumerate(demands) if d.lane == lane and d.decode]
        prefills = [i for i, d in enumerate(demands) if d.lane == lane and not d.decode]
        used = _in_order(limit, decodes, demands, granted)
        used += _fairly(limit - used, prefills, demands, granted)
        left -= used
    return granted


def _in_order(limit: int, mine: Sequence[int], demands: Sequence[Demand], granted: list[int]) -> int:
    left = limit
    for i in mine:
        granted[i] = min(left, demands[i].tokens)
        left -= granted[i]
    return limit - left


def _fairly(limit: int, mine: Sequence[int], demands: Sequence[Demand], granted: list[int]) -> int:
    if not mine:
        return 0
    oldest, *others = mine
    least = min(limit - limit // 2, demands[oldest].tokens)
    used = _in_order(limit - least, sorted(others, key=lambda i: demands[i].tokens), demands, granted)
    granted[oldest] = min(limit - used, demands[oldest].tokens)  # what the others leave goes back to it
    return used + granted[oldest]
