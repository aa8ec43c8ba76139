"""How the cache's memory is divided between blocks of KV and the states of models that keep any. Pure arithmetic."""

from __future__ import annotations

from typing import NamedTuple

# As many as a session leaves behind, and goes on from, in a turn: one that is written, one at the end of the prompt and
# one in the output; and one more, for the turn before or a beginning that several prompts share.
STATES_PER_SEQUENCE = 4


class CacheSize(NamedTuple):
    """What there is room for."""

    blocks: int
    states: int


def divide(
    budget: int, per_token: int, per_state: int, *, block_size: int, max_running: int, states: int | None = None
) -> CacheSize:
    """`budget` bytes for `max_running` sequences: `states` slots, or `STATES_PER_SEQUENCE` for each sequence but at
    most half of the memory; the rest is blocks. A state takes as much as thousands of tokens, and a hit needs both."""
    if not per_state:
        return CacheSize(budget // (per_token * block_size), 0)
    slots = states or max(1, min(STATES_PER_SEQUENCE * max_running, budget // 2 // per_state))
    return CacheSize(max(0, budget - slots * per_state) // (per_token * block_size), slots)
