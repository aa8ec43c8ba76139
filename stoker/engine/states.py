"""State slots of models with recurrent layers: who goes on from which, and from which snapshots later prompts may.

Owns the slots and where a sequence's work must end to be worth a snapshot. What a state holds is the executor's, which
sequence runs is `residency.py`'s business.

A slot is to a state what a block is to KV: written by one sequence, and once published under the link of the page it
ends on, found by others and never written again. So nothing is ever copied. A step reads a sequence's state from one
slot and leaves it in another, or in the same where nobody else could want the old one:

    own, on no page border ── read, write ──> the same slot
    snapshot (its own, or the one it was let in with) ── read ── write ──> another slot

A sequence leaves snapshots where a step of it ends on a page border. They stay where the next prompt is likely to part
from this one: at the end of its prompt, where it parts from pages that are cached or being computed for another, and at
every `every` tokens if that is set. Elsewhere, in long prompts and in its output, each replaces the one before: so
there is one near the end of what a sequence has computed, for its next turn, or for itself when it is preempted.
A snapshot goes when its page does, or when slots are short, least recently used first.

Flaws: pages behind the last snapshot of their chain cannot be used, yet stay until they are the least recently used.
And who routes by the pages that an engine tells of expects hits up to the last page, not to the last snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stoker.engine.blocks import BlockPool
from stoker.engine.sequence import Sequence as Seq

# So many places at once may a sequence have to stop at: each is a step of its own, asked for by others.
_STOPS = 8


class StatePool:
    """`slots` states beside the pages of `pages`. As long as no more sequences run than there are slots, one at least
    can get on: whoever gets no other slot writes over the snapshot that it goes on from."""

    def __init__(self, slots: int, pages: BlockPool, every: int | None = None) -> None:
        page = pages.block_size
        if every is not None and every % page:
            raise ValueError(f"snapshots every {every} tokens do not lie on pages of {page}")
        self.pool = BlockPool(slots, page)
        self._page = page
        self._every = every
        pages.watchers.append(self)

    def published(self, link: bytes, group: tuple[bytes, ...]) -> None:
        """The pages tell: nothing to do, for a snapshot comes after its page."""

    def withdrawn(self, link: bytes) -> None:
        """The pages tell: the snapshot behind a page that cannot be found is of no use."""
        self.pool.drop(link)

    def resumable(self, links: Sequence[bytes], token_ids: Sequence[int]) -> int:
        """How many of the pages `links`, whose ids are the first `token_ids`, lie before their last snapshot."""
        for pages in range(len(links), 0, -1):
            if self._find(links, token_ids, pages):
                return pages
        return 0

    def enter(self, seq: Seq, matched: int) -> None:
        """`seq` goes on from the snapshot after its `seq.cached` tokens, though `matched` pages of it are cached."""
        if seq.cached:
            found = self._find(seq.chain.links, seq.token_ids, seq.cached // self._page)
            self.pool.acquire(found)
            (seq.slot,) = found
        seq.stops = [at for at in {matched * self._page, seq.matchable * self._page} if at > seq.cached]

    def ask(self, seq: Seq, pages: int) -> bool:
        """Have running `seq`, which has not come so far, leave a snapshot after `pages` pages; False if it will not."""
        at = pages * self._page
        if at in seq.stops or self._regular(at):
            return True
        if len(seq.stops) >= _STOPS:
            return False
        seq.stops.append(at)
        return True

    def within(self, seq: Seq) -> int:
        """How many tokens the next step may compute of `seq`."""
        ends = [at for at in seq.stops if at > seq.computed]
        if self._every is not None:
            ends.append((seq.computed // self._every + 1) * self._every)
        return min([*ends, seq.known]) - seq.computed

    def prepare(self, seq: Seq, tokens: int) -> int:
        """Give `seq` the slot for its state after `tokens` more. Returns how many it shall compute: less than asked to
        end on a page border, 0 to pause for want of a slot."""
        end = (seq.computed + tokens) // self._page * self._page
        if tokens < self.within(seq) and end > seq.computed:
            tokens = end - seq.computed
        alone = seq.slot is not None and self.pool.holders(seq.slot) == 1
        if alone and seq.slot is not None and not self.pool.published(seq.slot):
            seq.target = seq.slot
        elif slots := self.pool.allocate(1):
            (seq.target,) = slots
        elif alone and seq.slot is not None:
            self.pool.retract([seq.slot])
            seq.target = seq.slot
        else:
            return 0
        return tokens

    def settle(self, seq: Seq) -> None:
        """The step that `seq` was prepared for is done: its state is where it shall be, and a snapshot on a border."""
        assert seq.target is not None
        if seq.slot is not None and seq.slot != seq.target:
            self.pool.release([seq.slot])
        seq.slot, seq.target = seq.target, None
        page, end = self._page, seq.computed
        if end % page == 0:
            link = seq.chain.links[end // page - 1]
            if self.pool.publish(seq.slot, link, seq.token_ids[end - page : end]):
                if seq.trail is not None:
                    self.pool.drop(seq.trail)
                seq.trail = None if end in seq.stops or self._regular(end) else link
        seq.stops = [at for at in seq.stops if at > end]

    def leave(self, seq: Seq) -> None:
        """`seq` holds no state any more; its snapshots stay."""
        self.pool.release([slot for slot in {seq.slot, seq.target} if slot is not None])
        seq.slot = seq.target = seq.trail = None
        seq.stops = []

    def check(self, sequences: Iterable[Seq]) -> list[str]:
        """What is wrong, in words; `sequences` are those that run."""
        held = [[slot for slot in {seq.slot, seq.target} if slot is not None] for seq in sequences]
        return [f"states: {fault}" for fault in self.pool.check(held)]

    def _find(self, links: Sequence[bytes], token_ids: Sequence[int], pages: int) -> list[int]:
        end = pages * self._page
        return self.pool.match(links[pages - 1 : pages], token_ids[end - self._page : end])

    def _regular(self, at: int) -> bool:
        return self._every is not None and at % self._every == 0
