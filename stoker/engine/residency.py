"""Who is in: slots and blocks go to waiting sequences, are taken from running ones, and come back.

Owns the waiting lines, the running set, admission, displacement, preemption and the choice of victims. Does not own
the step's token budget (`budget.py`), plans or results (`scheduler.py`).

Rules
- A lane's line is served in order of arrival; a preempted sequence keeps its place. While the head of a line waits for
  blocks nobody in a lower lane is let in, for they would take what it waits for, and of those behind it only a few
  that are far smaller: a one-line question does not wait for a place for a long prompt.
- A sequence is let in only if its whole prompt fits beside what those already in still need, and some blocks of growth
  for each of them: a prefill is hardly ever thrown away halfway.
- A waiting sequence displaces running ones of lower lanes, if that suffices, but for slots never below the reserve of
  their lane. A running one that needs a block preempts lower lanes or younger ones of its own lane; if there are none
  it pauses, keeping what it has. So the oldest of the highest lane always gets on, and everybody does in the end.
- Where a model keeps states (`states.py`), a sequence can use cached pages up to a snapshot only, and computes the rest
  again.
- A waiting sequence whose next uncached page is being computed by a running one (of its lane or a higher one) waits
  until that is published: a prompt that several share is computed once. It is stepped over, it blocks nobody. So is
  one that is held: its grammar is being compiled.

Flaw: blocks have no reserve. A batch sequence that needs many blocks waits as long as higher lanes fill the pool.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable

from stoker.engine.blocks import BlockPool
from stoker.engine.budget import reserves
from stoker.engine.chain import LOGICAL_BLOCK
from stoker.engine.sequence import Sequence, State
from stoker.engine.states import StatePool
from stoker.types.lane import Lane

# Blocks left to each running sequence to grow into before another is let in. Measured on a crowded pool of mixed
# requests: 1 block leads to 9 to 13 % recomputed tokens, 4 to half of that for 2 % more steps, 16 to 4 % for 15 %.
_GROWTH = 4

# So many may overtake a sequence that waits for blocks, and each must be so many times smaller.
_OVERTAKERS = 16


def _arrival(seq: Sequence) -> int:
    return seq.number


def _may_overtake(seq: Sequence, head: Sequence) -> bool:
    """Is `seq`, prompt and output, so small that it may go before `head`, which waits for blocks? All who do together
    take no more than `head` itself, and they are few, so it is not put off for ever."""
    whole = seq.known + seq.max_output - seq.output
    return head.overtaken < _OVERTAKERS and whole * _OVERTAKERS <= head.known


class Residency:
    """The waiting lines and the running set over one pool. Only `admit` and `grow` give anything to a sequence."""

    def __init__(
        self, pool: BlockPool, max_running: int, lane_reserve: tuple[float, float], states: StatePool | None = None
    ) -> None:
        """`states` of a model that keeps any: as many slots as may run, at least."""
        self.pool = pool
        self.states = states
        self.max_running = max_running
        self.preemptions = 0
        self.running: dict[int, Sequence] = {}
        self.waiting: dict[Lane, list[Sequence]] = {lane: [] for lane in Lane}
        self.departed: list[int] = []  # numbers that the executor knows and shall forget
        self._reserve = reserves(max_running, lane_reserve)
        self._group = max(1, LOGICAL_BLOCK // pool.block_size)  # pages of a logical block
        self._computing: dict[bytes, Sequence] = {}  # link of a page -> who will publish it

    def enqueue(self, seq: Sequence) -> None:
        """Into its line, at its place of arrival."""
        seq.state = State.WAITING
        insort(self.waiting[seq.lane], seq, key=_arrival)

    def leave(self, seq: Sequence) -> None:
        """It is finished: wherever it is, it gives back what it holds."""
        if seq.state is State.WAITING:
            line = self.waiting[seq.lane]
            del line[bisect_left(line, seq.number, key=_arrival)]
        elif seq.state is State.RUNNING:
            self._evict(seq)
        seq.state = State.FINISHED

    def admit(self) -> None:
        """Let in all who may, mapping what is cached for them."""
        for lane in Lane:
            head: Sequence | None = None  # the first in line for which there is no room
            for seq in tuple(self.waiting[lane]):
                if seq.held or self._awaits_page(seq) or (head is not None and not _may_overtake(seq, head)):
                    continue
                for_slot = self._slot(lane)
                if for_slot is None:
                    break  # a lower lane may still have slots in reserve
                if seq.refused != self.pool.releases:
                    matched = known = self.pool.match(seq.chain.links[: seq.matchable], seq.token_ids)
                    if self.states is not None:
                        matched = known[: self.states.resumable(seq.chain.links[: len(known)], seq.token_ids)]
                    if self._find_leader(seq, len(matched)):
                        continue
                    victims = self._room(seq, matched, for_slot)
                    if victims is not None:
                        for victim in victims:
                            self.preempt(victim)
                        self._enter(seq, matched, len(known))
                        if head is not None:
                            head.overtaken += 1
                        continue
                    seq.refused = self.pool.releases
                head = head or seq
            if head is not None:
                return

    def wants(self, seq: Sequence) -> int:
        """How many tokens of running `seq` a step can compute."""
        return seq.pending if self.states is None else self.states.within(seq)

    def grow(self, seq: Sequence, tokens: int) -> int:
        """Give running `seq` what it needs to compute `tokens` more, preempting others where the rules say so. Returns
        for how many it now has that: fewer than asked where blocks lack, 0 to pause."""
        need = seq.blocks_for(seq.computed + tokens) - len(seq.blocks)
        while need > self.pool.available:
            victims = self._by_cost(s for s in self.running.values() if (s.lane, s.number) > (seq.lane, seq.number))
            if not victims:
                break
            self.preempt(victims[0])
        seq.blocks += self.pool.allocate(max(0, min(need, self.pool.available))) or ()
        tokens = min(tokens, len(seq.blocks) * self.pool.block_size - seq.computed)
        return tokens if self.states is None or not tokens else self.states.prepare(seq, tokens)

    def preempt(self, seq: Sequence) -> None:
        """Out of its slot and blocks, back to its place in line. Its ids are kept, its KV is computed again."""
        self._evict(seq)
        self.enqueue(seq)
        self.preemptions += 1

    def publish(self, seq: Sequence) -> None:
        """Make what the step that has just been applied computed findable: full pages, and a state on a border."""
        size, group = self.pool.block_size, self._group
        seq.chain.extend(seq.token_ids)
        links = seq.chain.links
        for page in range(seq.published, seq.computed // size):
            link = links[page]
            pages = () if (page + 1) % group else tuple(links[page + 1 - group : page + 1])
            self.pool.publish(seq.blocks[page], link, seq.token_ids[page * size : (page + 1) * size], pages)
            if self._computing.get(link) is seq:
                del self._computing[link]
        seq.published = seq.computed // size
        if self.states is not None:
            self.states.settle(seq)

    def check(self) -> list[str]:
        """What is wrong with the pools and who holds what, in words."""
        faults = self.pool.check(seq.blocks for seq in self.running.values())
        return faults if self.states is None else faults + self.states.check(self.running.values())

    def _enter(self, seq: Sequence, matched: list[int], known: int) -> None:
        """Let it in with the blocks `matched`, though `known` pages of it are cached."""
        line, page = self.waiting[seq.lane], self.pool.block_size
        del line[bisect_left(line, seq.number, key=_arrival)]
        self.pool.acquire(matched)
        self.running[seq.number] = seq
        seq.state, seq.blocks, seq.published = State.RUNNING, matched, len(matched)
        seq.advance(found=len(matched) * page)
        if self.states is not None:
            self.states.enter(seq, known)
        for link in seq.chain.links[len(matched) :]:
            leader = self._computing.setdefault(link, seq)
            if leader.lane > seq.lane:
                self._computing[link] = seq

    def _evict(self, seq: Sequence) -> None:
        del self.running[seq.number]
        for link in seq.chain.links[seq.published :]:
            if self._computing.get(link) is seq:
                del self._computing[link]
        if seq.sent:
            self.departed.append(seq.number)
        if self.states is not None:
            self.states.leave(seq)
        self.pool.release(seq.vacate())

    def _awaits_page(self, seq: Sequence) -> bool:
        """Is the page that `seq` waits for still being computed?"""
        leader = None if seq.awaits is None else self._computing.get(seq.awaits)
        if leader is not None and leader.lane <= seq.lane:
            return True
        seq.awaits = None
        return False

    def _find_leader(self, seq: Sequence, matched: int) -> bool:
        """Does a running sequence compute the page after the `matched` ones? Then `seq` awaits the last page in a row
        that it shares with that leader, which leaves a snapshot there if `seq` needs one. A leader in a lower lane is
        not waited for: it may be slow."""
        links = seq.chain.links[matched : seq.matchable]
        leader = self._computing.get(links[0]) if links else None
        if leader is None or leader.lane > seq.lane:
            return False
        shared = next((i for i, link in enumerate(links) if self._computing.get(link) is not leader), len(links))
        if self.states is not None and not self.states.ask(leader, matched + shared):
            return False
        seq.awaits = links[shared - 1]
        return True

    def _slot(self, lane: Lane) -> list[Sequence] | None:
        """Whom to displace for a slot in `lane`: nobody if there is one to spare; None if it cannot be had."""
        count = Counter(seq.lane for seq in self.running.values())
        for lower in Lane:
            if lower > lane:
                owed = min(self._reserve[lower], len(self.waiting[lower]) + count[lower]) - count[lower]
                count[lane] += max(0, owed)  # slots that are not taken and yet not to be had
        over = count.total() + 1 - self.max_running
        victims: list[Sequence] = []
        for victim in self._by_cost(seq for seq in self.running.values() if seq.lane > lane):
            if len(victims) >= over:
                break
            if count[victim.lane] > self._reserve[victim.lane]:
                count[victim.lane] -= 1
                victims.append(victim)
        return victims if len(victims) >= over else None

    def _room(self, seq: Sequence, matched: list[int], for_slot: list[Sequence]) -> list[Sequence] | None:
        """Whom to displace so that all blocks of `seq` fit, `for_slot` among them; None if that would not suffice."""
        need = seq.blocks_for(seq.known) - len(matched) + sum(self.pool.holders(block) == 0 for block in matched)
        spare = self.pool.available - need - sum(self._claim(other) for other in self.running.values())
        others = (o for o in self.running.values() if o.lane > seq.lane and o not in for_slot)
        held: Counter[int] = Counter()
        kept = set(matched)
        victims: list[Sequence] = []
        for victim in (*for_slot, *(self._by_cost(others) if spare < 0 else ())):
            if spare >= 0 and len(victims) >= len(for_slot):
                break
            victims.append(victim)
            spare += self._claim(victim)
            held.update(victim.blocks)
            # A block comes free with the last of its holders, and what was matched stays in use for `seq`.
            spare += sum(held[block] == self.pool.holders(block) and block not in kept for block in victim.blocks)
        return victims if spare >= 0 else None

    def _claim(self, seq: Sequence) -> int:
        """Blocks that running `seq` will still take for what it knows, and soon for what it will generate."""
        known = seq.blocks_for(seq.known)
        growth = seq.blocks_for(seq.known + seq.max_output - seq.output) - known
        return known - len(seq.blocks) + min(growth, _GROWTH)

    def _by_cost(self, candidates: Iterable[Sequence]) -> list[Sequence]:
        """Victims, the first to go first: lowest lane, least recompute, youngest."""
        return sorted(candidates, key=lambda s: (-s.lane, s.computed - s.published * self.pool.block_size, -s.number))
