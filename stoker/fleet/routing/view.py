"""The router's own view of one replica's prefix cache: what will be resident when a request sent now gets its turn.

Fed at dispatch, in dispatch order, with the replica's true capacity, and losing blocks as the engine does: least
recently used first, tails before heads. Corrected by the engine's events. Does not choose replicas.

An engine's events say what is resident *now*; a request that queues needs to know what will be when it starts. With
engines that serve in order those differ by exactly what is queued, which is what the router itself has sent. Hence
these rules: a dispatched prompt counts at once; a removal does not touch what a request still in the queue will use,
for that request brings it back; what an engine has newly stored was used before everything that is queued; and if
that is what a queued request will push out again, it is not put back.

Blocks are kept in *runs*: pieces of one prompt that were used last at the same time. A prompt that is sent walks runs,
not blocks, so a dispatch costs O(runs + new blocks). A run is cut in two where a prompt leaves it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from stoker.fleet.routing.index import PrefixIndex

MOST_RUNS = 64  # of a prompt, before they are made one: a session of many small turns stays quick


class _Run:
    """`blocks`, of which `live` are still here under this run. While `whole`, all are, and they are neighbours in one
    prompt, first to last. `tickets` are the queued prompts that will use it, `used` is when it was used last."""

    __slots__ = ("blocks", "live", "tickets", "used", "whole")

    def __init__(self, blocks: list[bytes], used: float, *, whole: bool) -> None:
        self.blocks, self.whole, self.used = blocks, whole, used
        self.live = len(blocks)
        self.tickets: list[Ticket] = []


class Ticket:
    """A dispatched prompt in the queue: the runs that it will use, the blocks that it will push out, and those that it
    alone has promised. `since` is the time since the known part of it was used last, None if no part was known."""

    __slots__ = ("ousted", "promised", "runs", "since")

    def __init__(self) -> None:
        self.runs: list[_Run] = []
        self.ousted: list[bytes] = []
        self.promised: list[bytes] = []
        self.since: float | None = None


class CacheView:
    """`capacity` in blocks, `bit` this replica's in `index`. Not more than `capacity` blocks are ever kept."""

    def __init__(self, index: PrefixIndex, bit: int, capacity: int) -> None:
        self.capacity = max(capacity, 1)
        self._index, self._bit = index, bit
        self._order: OrderedDict[_Run, None] = OrderedDict()  # the next to lose blocks first
        self._home: dict[bytes, _Run] = {}
        self._queue: dict[Ticket, None] = {}  # in order of dispatch
        self._ousted: dict[bytes, Ticket] = {}  # by the last queued prompt that pushes it out
        self._promised: set[bytes] = set()  # of queued prompts, blocks that the engine has not told of

    def __len__(self) -> int:
        return len(self._home)

    def __contains__(self, block: bytes) -> bool:
        return block in self._home

    def eldest(self, more: int) -> float | None:
        """When that was used last which `more` new blocks would push out first; None while there is room for them."""
        if len(self._home) + more <= self.capacity or not self._order:
            return None
        return next(iter(self._order)).used

    def dispatched(self, blocks: Sequence[bytes], now: float) -> Ticket:
        """A prompt was sent there: it is what is used last now. Give the ticket back to `begun` or `abandoned`."""
        ticket = Ticket()
        end = min(len(blocks), self.capacity)
        at = 0
        while at < end:
            run, after, fresh = self._walk(blocks, at, end, now)
            ticket.runs.append(run)
            ticket.promised += fresh
            if not fresh:
                ticket.since = now - run.used
            at = after
        if len(ticket.runs) > MOST_RUNS:
            ticket.runs = [self._new(blocks[:end], now, whole=True)]
        for run in ticket.runs:
            run.tickets.append(ticket)
            run.used = now
        self._queue[ticket] = None
        self._promised.update(ticket.promised)
        self._renew(ticket)
        ticket.ousted = self._shrink()
        self._ousted.update(dict.fromkeys(ticket.ousted, ticket))
        return ticket

    def begun(self, ticket: Ticket) -> None:
        """The prompt has been computed: from here on events alone tell of its blocks."""
        self._queue.pop(ticket, None)
        self._promised.difference_update(ticket.promised)
        for run in ticket.runs:
            run.tickets.remove(ticket)
        for block in ticket.ousted:
            if self._ousted.get(block) is ticket:
                del self._ousted[block]
        ticket.runs, ticket.ousted, ticket.promised = [], [], []

    def abandoned(self, ticket: Ticket) -> None:
        """The prompt left the queue before it was computed. What only it has promised will not be there, unless
        another that is queued brings it."""
        promised = [block for block in ticket.promised if block in self._promised]
        self.begun(ticket)
        for block in promised:
            run = self._home.get(block)
            if run is not None and run.tickets:
                run.tickets[-1].promised.append(block)
                self._promised.add(block)
            elif run is not None:
                self._drop(block, run)

    def stored(self, blocks: Sequence[bytes], now: float) -> None:
        """The engine has these; what the view has of them already keeps its place."""
        self._promised.difference_update(blocks)
        fresh = [block for block in blocks if block not in self._home and block not in self._ousted]
        if fresh:
            self._new(fresh, now, whole=False)
            for ticket in self._queue:
                self._renew(ticket)
            self._shrink()

    def removed(self, blocks: Iterable[bytes]) -> None:
        """The engine has lost these. What a queued prompt will bring back stays."""
        for block in blocks:
            run = self._home.get(block)
            if run is not None and not run.tickets:
                self._drop(block, run)

    def keep_only(self, blocks: set[bytes]) -> None:
        """The engine has no others than these, and what queued prompts will bring."""
        self.removed(list(self._home.keys() - blocks))

    def clear(self) -> None:
        """Nothing is there any more, and nothing is queued."""
        for block in self._home:
            self._index.discard(block, self._bit)
        self._home.clear()
        self._order.clear()
        self._queue.clear()
        self._ousted.clear()
        self._promised.clear()

    def resize(self, capacity: int) -> None:
        self.capacity = max(capacity, 1)
        self._shrink()

    def check(self) -> list[str]:
        """What is wrong, in words; empty when the view is whole. O(blocks), for tests."""
        faults: list[str] = []
        counts = Counter(self._home.values())
        for run in self._order:
            if run.live != counts.pop(run, 0) or run.live < 1:
                faults.append(f"a run counts {run.live} blocks wrongly")
            if len(run.blocks) > (run.live if run.whole else 2 * run.live + 8):
                faults.append(f"a run keeps {len(run.blocks)} blocks for {run.live}")
            if any(run not in ticket.runs for ticket in run.tickets):
                faults.append("a ticket does not know its run")
        if counts:
            faults.append(f"{len(counts)} runs are lost")
        held = {block for block, mask in self._index.holders.items() if mask & self._bit}
        if held != self._home.keys():
            faults.append("index and view disagree")
        if len(self._home) > self.capacity:
            faults.append(f"{len(self._home)} blocks in {self.capacity}")
        return faults

    def _renew(self, ticket: Ticket) -> None:
        """The runs of a prompt are used last, its head last of all."""
        for run in reversed(ticket.runs):
            self._order.move_to_end(run)

    def _new(self, blocks: Sequence[bytes], now: float, *, whole: bool) -> _Run:
        """A run of `blocks`, taken from where they are if they are anywhere. There is at least one."""
        home = self._home
        unique = dict.fromkeys(blocks)
        run = _Run(list(unique), now, whole=whole)
        known = [block for block in run.blocks if block in home]
        for block in known:
            self._left(home[block])
        home.update(dict.fromkeys(run.blocks, run))
        if len(known) < len(run.blocks):
            self._index.add(run.blocks, self._bit)
        self._order[run] = None
        return run

    def _walk(self, blocks: Sequence[bytes], at: int, end: int, now: float) -> tuple[_Run, int, list[bytes]]:
        """The run of `blocks` from `at` on, where it ends, and what of it is new: a known run has nothing, as has the
        head of a known one."""
        run = self._begins(blocks[at])
        if run is None:
            rest, fresh = blocks[at:end], list[bytes]()
            if self._home.keys().isdisjoint(rest):
                after = end
                fresh += rest
            else:
                after = next((n for n in range(at + 1, end) if self._begins(blocks[n])), end)
                rest = rest[: after - at]
                fresh += [block for block in rest if block not in self._home]
            return self._new(rest, now, whole=True), after, fresh
        own = run.blocks
        after = at + len(own)
        # A link names all before it: where both ends are the same, all between is.
        if after <= end and own[-1] == blocks[after - 1]:
            return run, after, []
        pairs = zip(own, blocks[at:end], strict=False)
        shared = next((n for n, (mine, theirs) in enumerate(pairs) if mine != theirs), min(len(own), end - at))
        head = _Run(own[:shared], run.used, whole=True)
        run.blocks = own[shared:]
        run.live -= shared
        self._home.update(dict.fromkeys(head.blocks, head))
        self._order[head] = None
        head.tickets = list(run.tickets)
        for ticket in head.tickets:
            ticket.runs.append(head)
        return head, at + shared, []

    def _begins(self, block: bytes) -> _Run | None:
        """The whole run that begins with `block`."""
        run = self._home.get(block)
        return run if run is not None and run.whole and run.blocks[0] == block else None

    def _left(self, run: _Run) -> None:
        """One block, not necessarily the last, is no longer the run's own. What it keeps for nothing stays bounded."""
        run.live -= 1
        run.whole = False
        if not run.live:
            self._forget(run)
        elif len(run.blocks) > 2 * run.live + 8:
            run.blocks = [block for block in run.blocks if self._home.get(block) is run]

    def _forget(self, run: _Run) -> None:
        del self._order[run]
        for ticket in run.tickets:
            ticket.runs.remove(run)
        run.tickets.clear()

    def _drop(self, block: bytes, run: _Run) -> None:
        del self._home[block]
        self._index.discard(block, self._bit)
        if run.blocks[-1] == block:
            run.blocks.pop()
            run.live -= 1
            if not run.live:
                self._forget(run)
        else:
            self._left(run)

    def _shrink(self) -> list[bytes]:
        """Down to the capacity. Returns what was lost."""
        home, lost = self._home, list[bytes]()
        while len(home) > self.capacity:
            run = next(iter(self._order))
            block = run.blocks[-1]
            if home.get(block) is run:
                self._drop(block, run)
                lost.append(block)
            else:
                run.blocks.pop()
        return lost
