"""One prompt being continued: its ids, its three counters and its block table.

Owns the counters' invariant. Does not own scheduling, the pool or what a token means.
"""

from __future__ import annotations

from collections.abc import Sequence as Ids
from dataclasses import dataclass, field
from enum import Enum, auto

from stoker.engine.chain import Chain
from stoker.engine.images import Placed
from stoker.types.lane import Lane
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Reasoning


class State(Enum):
    WAITING = auto()  # holds nothing: not yet admitted, or preempted
    RUNNING = auto()  # holds a slot and blocks
    FINISHED = auto()  # holds nothing and never will again


@dataclass(eq=False, slots=True)
class Sequence:
    """`cached <= computed <= known`, in tokens from the first: found in the cache when it was admitted, with KV in its
    blocks, with a known id. `known - computed` is never 0 while it runs: a prompt that is cached completely would leave
    nothing to compute and so no logits to choose the next token from.

    number    order of arrival, kept over preemption; names it to the executor
    token_ids prompt and, behind it, the `output` tokens generated so far: some may come with it, from another engine
    max_output  tokens it may generate: what was asked for, clamped to the context
    hit       tokens served from the cache, fixed when first scheduled (None before): what is billed as cached
    reached   most tokens ever computed; computing below it again is recompute
    sent      ids that the executor knows; 0 while it does not know the sequence
    placed    blocks of the table that the executor knows
    published pages of it that were published (or found published)
    awaits    link of a page that another sequence computes, before which it is not let in
    overtaken how many went before it while it waited for blocks
    refused   releases that the pool had seen when there was no room for it: more are needed before the next try
    arrived   steps that had been made when it came
    waited    steps from then to its first token, that step included; 0 before
    came      when that was, by the scheduler's clock
    entered   when its first step was planned
    held      its grammar is still being compiled: it is not let in
    images    those of its prompt, in order

    Where the model keeps states (`states.py`):
    slot      of its state after the `computed` tokens, None before the first
    target    slot that the step under way leaves it in
    stops     numbers of tokens at which a step of it shall end, for the sake of a snapshot
    trail     link of its last snapshot, if the next one replaces that
    """

    number: int
    request: str
    token_ids: list[int]
    sampling: SamplingParams
    lane: Lane
    chain: Chain
    max_output: int
    grammar: str | None = None
    reasoning: Reasoning | None = None
    held: bool = False
    images: tuple[Placed, ...] = ()
    arrived: int = 0
    came: float = 0.0
    entered: float = 0.0
    output: int = 0
    prompt_len: int = field(init=False)
    stop_ids: frozenset[int] = field(init=False)
    state: State = State.WAITING
    cached: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list[int])
    hit: int | None = None
    reached: int = 0
    sent: int = 0
    placed: int = 0
    published: int = 0
    awaits: bytes | None = None
    overtaken: int = 0
    waited: int = 0
    refused: int | None = None
    slot: int | None = None
    target: int | None = None
    stops: list[int] = field(default_factory=list[int])
    trail: bytes | None = None

    def __post_init__(self) -> None:
        self.prompt_len = len(self.token_ids) - self.output
        self.stop_ids = frozenset(self.sampling.stop_ids)
        self.chain.extend(self.token_ids)

    @property
    def known(self) -> int:
        return len(self.token_ids)

    @property
    def pending(self) -> int:
        """Known tokens without KV."""
        return len(self.token_ids) - self.computed

    @property
    def decoding(self) -> bool:
        """All but the newest generated token has KV: a step of one token."""
        return self.output > 0 and self.pending == 1

    @property
    def matchable(self) -> int:
        """Full pages that may come from the cache: one token at least is left to compute."""
        return (len(self.token_ids) - 1) // self.chain.page

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.chain.page)

    def advance(self, *, found: int = 0, computed: int = 0, accepted: Ids[int] = ()) -> int:
        """The only way the counters go up: tokens `found` in the cache on admission, tokens `computed` by a step, ids
        `accepted` after them. Returns how many of the computed ones had been computed before."""
        again = max(0, min(self.computed + computed, self.reached) - self.computed) if computed else 0
        self.cached += found
        self.computed += found + computed
        assert self.cached <= self.computed <= len(self.token_ids), self
        self.token_ids.extend(accepted)
        self.reached = max(self.reached, self.computed)
        return again

    def vacate(self) -> list[int]:
        """It no longer has any KV. Returns the blocks that it held, for the pool."""
        blocks, self.blocks = self.blocks, []
        self.cached = self.computed = self.sent = self.placed = self.published = 0
        return blocks
