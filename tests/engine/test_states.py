"""State slots: against a model that keeps what each slot holds, and as a scheduler's requests see them."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scheduler_harness import Rig, ids

from stoker.engine.blocks import BlockPool
from stoker.engine.chain import Chain, ChainRoot
from stoker.engine.sequence import Sequence
from stoker.engine.states import StatePool
from stoker.types.lane import Lane
from stoker.types.sampling import SamplingParams

ROOT = ChainRoot(fingerprint="m")
Prefix = tuple[int, ...]
ALIKE = [[1] * 7, [1] * 13, [1] * 8 + [0] * 5]


def sequence(number: int, prompt: list[int]) -> Sequence:
    return Sequence(
        number=number,
        request=str(number),
        token_ids=list(prompt),
        sampling=SamplingParams(),
        lane=Lane.STANDARD,
        chain=Chain(ROOT, b"k", 2),
        max_output=9,
    )


class StateMachine(RuleBasedStateMachine):
    """`holds`: of what prefix each slot is the state, as an executor would have left it. `snapshots`: prefixes that
    must be findable as long as no slot is short; `pages`: prefixes whose page is in the pool."""

    @initialize(running=st.integers(1, 4), spare=st.sampled_from([0, 1, 100]), every=st.sampled_from([None, 2, 6]))
    def build(self, running: int, spare: int, every: int | None) -> None:
        self.page = 2
        self.pages = BlockPool(300, self.page)
        self.states = StatePool(running + spare, self.pages, every)
        self.running, self.ample, self.every = running, spare == 100, every
        self.holds: dict[int, Prefix] = {}
        self.snapshots: set[Prefix] = set()
        self.trails: dict[int, Prefix] = {}
        self.sequences: dict[int, Sequence] = {}
        self.lent: list[int] = []
        self.number = 0

    @precondition(lambda self: len(self.sequences) < self.running)
    @rule(prompt=st.one_of(st.sampled_from(ALIKE), st.lists(st.integers(0, 1), min_size=1, max_size=14)))
    def enter(self, prompt: list[int]) -> None:
        seq = sequence(self.number, prompt)
        self.number += 1
        links = seq.chain.links[: seq.matchable]
        matched = self.pages.match(links, prompt)
        pages = self.states.resumable(links[: len(matched)], prompt)
        if self.ample:
            ends = [end for end in range(0, len(matched) * 2 + 1, 2) if tuple(prompt[:end]) in {(), *self.snapshots}]
            assert pages * 2 == ends[-1]
        self.pages.acquire(matched[:pages])
        seq.blocks = matched[:pages]
        seq.advance(found=pages * 2)
        self.states.enter(seq, len(matched))
        self.sequences[seq.number] = seq
        assert seq.slot is None or self.holds[seq.slot] == tuple(prompt[: pages * 2])
        assert set(seq.stops) == {len(links) * 2, len(matched) * 2} - {0, pages * 2}

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=st.integers(1, 14), aborted=st.booleans())
    def step(self, data: st.DataObject, tokens: int, aborted: bool) -> None:
        """Some sequences work, in any order; one may be aborted after its step."""
        order = data.draw(st.permutations(sorted(self.sequences)))
        work: list[tuple[Sequence, int]] = []
        for number in order:
            seq = self.sequences[number]
            asked = min(tokens, self.states.within(seq))
            count = self.states.prepare(seq, asked)
            assert count or work, "the first can always get on"
            assert count <= asked
            if count:
                work.append((seq, count))
        read = {seq.number: () if seq.slot is None else self.holds[seq.slot] for seq, _ in work}
        targets = [seq.target for seq, _ in work]
        assert len(set(targets)) == len(targets)
        for seq, count in work:
            assert seq.slot == seq.target or seq.slot not in targets
            assert read[seq.number] == tuple(seq.token_ids[: seq.computed]), "goes on from its own past"
            assert seq.target is not None
            assert not self.states.pool.published(seq.target), "what can be found is not written to"
            self.holds[seq.target] = tuple(seq.token_ids[: seq.computed + count])
        for seq, count in work:
            self.settle(seq, count)
        if aborted:
            self.leave(order[0])

    def settle(self, seq: Sequence, count: int) -> None:
        kept = set(seq.stops)
        seq.advance(computed=count)
        full = seq.computed // self.page
        for page in range(len(seq.blocks), full):
            (block,) = self.pages.allocate(1) or pytest.fail("this test has pages enough")
            seq.blocks.append(block)
            seq.chain.extend(seq.token_ids)
            self.pages.publish(block, seq.chain.links[page], seq.token_ids[page * 2 : page * 2 + 2])
        self.states.settle(seq)
        prefix = tuple(seq.token_ids[: seq.computed])
        if len(prefix) % 2 == 0 and prefix not in self.snapshots:
            self.snapshots.add(prefix)
            self.snapshots.discard(self.trails.pop(seq.number, ()))
            if not (len(prefix) in kept or (self.every and len(prefix) % self.every == 0)):
                self.trails[seq.number] = prefix
        if seq.pending == 0:
            seq.advance(accepted=[seq.number % 2])

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def leave_one(self, data: st.DataObject) -> None:
        self.leave(data.draw(st.sampled_from(sorted(self.sequences))))

    def leave(self, number: int) -> None:
        seq = self.sequences.pop(number)
        self.trails.pop(number, None)
        self.states.leave(seq)
        self.pages.release(seq.vacate())

    @rule()
    def evict_pages(self) -> None:
        """All pages that nobody holds go, and with each its snapshot."""
        self.lent += self.pages.allocate(self.pages.available) or []
        self.pages.release(self.lent)
        self.lent.clear()
        chains = {prefix: sequence(0, list(prefix)).chain.links for prefix in self.snapshots}
        self.snapshots = {prefix for prefix, links in chains.items() if self.pages.match(links[-1:], list(prefix[-2:]))}

    @invariant()
    def whole(self) -> None:
        assert self.states.check(self.sequences.values()) == []
        assert self.states.pool.in_use <= len(self.sequences)
        for seq in self.sequences.values():
            assert seq.target is None
            assert seq.slot is None or self.holds[seq.slot] == tuple(seq.token_ids[: seq.computed])
        found = {self.holds[slot] for slot in range(self.states.pool.num_blocks) if self.states.pool.published(slot)}
        assert found <= self.snapshots
        if self.ample:
            assert found == self.snapshots


TestStates = StateMachine.TestCase
TestStates.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def served(rig: Rig, name: str, prompt: list[int], max_tokens: int = 2) -> int:
    """Runs one request alone; how much of its prompt was found."""
    rig.add(name, prompt, max_tokens=max_tokens)
    rig.drain()
    rig.assert_as_expected(name)
    return rig.last[name].cached


def test_the_next_turn_goes_on_from_the_end_of_the_output() -> None:
    rig = Rig(block_size=4, states=40)
    assert served(rig, "turn 1", ids(10), max_tokens=9) == 0
    history = ids(10) + rig.tokens["turn 1"]
    assert served(rig, "turn 2", [*history, 1, 2, 3]) == 16, "18 tokens have states, 4 full pages of them"


def test_a_next_turn_without_the_output_goes_on_from_the_end_of_the_prompt() -> None:
    """Reasoning is often left out of the history."""
    rig = Rig(block_size=4, states=40)
    served(rig, "turn 1", ids(30), max_tokens=20)
    assert served(rig, "turn 2", ids(30) + ids(9, seed=5)) == 28
    assert served(rig, "all of it again", ids(30)) == 28


def test_long_outputs_do_not_fill_the_slots() -> None:
    rig = Rig(blocks=200, block_size=4, states=40)
    served(rig, "long", ids(10), max_tokens=300)
    assert rig.states is not None
    assert rig.states.pool.cached == 2, "the end of the prompt, and the end of the output"


def test_forks_of_one_prompt_compute_it_once() -> None:
    rig = Rig(blocks=100, block_size=4, states=40)
    for name in "abc":
        rig.add(name, ids(39), max_tokens=6)
    rig.drain()
    for name in "abc":
        rig.assert_as_expected(name)
    assert [rig.last[name].cached for name in "abc"] == [0, 36, 36]
    assert rig.scheduler.stats().prefill_tokens == 39 + 2 * 3


def test_agents_that_start_together_share_the_system_prompt() -> None:
    """Where the others part from the first is known while it computes: it stops there for them."""
    rig = Rig(blocks=100, block_size=4, states=40, step_tokens=8)
    for n in range(4):
        rig.add(str(n), ids(22) + ids(18, seed=n + 1))
    rig.drain()
    assert [rig.last[str(n)].cached for n in range(4)] == [0, 20, 20, 20]


def test_the_third_prompt_with_the_same_beginning_finds_it() -> None:
    """The second finds the pages without a state, and leaves one where it parts."""
    rig = Rig(blocks=100, block_size=4, states=40)
    assert [served(rig, str(n), ids(22) + ids(18, seed=n + 1)) for n in range(3)] == [0, 0, 20]


def test_regular_snapshots_where_they_are_asked_for() -> None:
    rig = Rig(blocks=100, block_size=4, states=40, every=8)
    served(rig, "first", ids(40))
    assert [served(rig, f"parts at {at}", ids(at) + ids(9, seed=at)) for at in (7, 8, 15, 33)] == [0, 8, 8, 32]


def test_a_prompt_that_is_aborted_is_not_computed_from_the_beginning() -> None:
    rig = Rig(blocks=100, block_size=4, states=40, step_tokens=10)
    rig.add("first", ids(80))
    for _ in range(5):
        rig.step()
    rig.abort("first")
    assert served(rig, "again", ids(80)) == 40, "steps of 8 tokens, each replacing the snapshot of the one before"
    assert rig.states is not None
    assert rig.states.pool.cached <= 3


def test_preempted_sequences_go_on_from_their_last_snapshot() -> None:
    rig = Rig(blocks=60, block_size=4, max_running=1, states=20, lane_reserve=(0.0, 0.0))
    rig.add("batch", ids(30), max_tokens=40, lane=Lane.BATCH)
    for _ in range(20):
        rig.step()
    rig.add("urgent", ids(6, 1), lane=Lane.INTERACTIVE)
    rig.drain()
    for name in ("batch", "urgent"):
        rig.assert_as_expected(name)
    stats = rig.scheduler.stats()
    assert stats.preemptions == 1
    assert stats.recomputed_tokens < 4


@pytest.mark.parametrize("states", [3, 4, 5, 6, 40])
def test_any_number_of_slots_will_do(states: int) -> None:
    """From one slot for each that runs: then nothing is found again, unless somebody happens to leave it."""
    rig = Rig(blocks=60, block_size=4, max_running=3, states=states)
    for n in range(8):
        rig.add(str(n), ids(9) + ids(11, seed=n), max_tokens=12)
    rig.drain()
    for n in range(8):
        rig.assert_as_expected(str(n))
    if states == 40:
        assert sum(rig.last[str(n)].cached for n in range(8)) == 8 * 7


def test_the_least_recently_used_snapshot_goes_first() -> None:
    rig = Rig(blocks=100, block_size=4, max_running=1, states=4)
    for n in range(3):
        served(rig, str(n), ids(10, seed=n), max_tokens=1)
    assert served(rig, "0 again", ids(10, seed=0), max_tokens=1) == 8
    served(rig, "3", ids(10, seed=3), max_tokens=1)
    assert [served(rig, f"{n} too", ids(10, seed=n), max_tokens=1) for n in (0, 1)] == [8, 0]


def test_a_snapshot_goes_with_its_page() -> None:
    rig = Rig(blocks=12, block_size=4, states=40)
    served(rig, "first", ids(17), max_tokens=1)
    assert rig.states is not None
    assert rig.states.pool.cached == 1
    served(rig, "takes all", ids(45, 1), max_tokens=1)
    assert rig.states.pool.cached == 1
    assert served(rig, "again", ids(17), max_tokens=1) == 0


def test_broken_logits_take_the_snapshots_along() -> None:
    rig = Rig(states=40)
    number = rig.add("broken", ids(20))
    rig.executor.fail.add(number)
    rig.drain()
    assert rig.last["broken"].finish == "error"
    assert rig.states is not None
    assert rig.states.pool.free == 40
    assert served(rig, "again", ids(20)) == 0


def test_domains_share_no_state() -> None:
    rig = Rig(block_size=4, states=40)
    for name, domain in (("a1", "a"), ("b1", "b"), ("a2", "a")):
        rig.add(name, ids(20), domain=domain)
        rig.drain()
        rig.assert_as_expected(name)
    assert [rig.last[name].cached for name in ("a1", "b1", "a2")] == [0, 0, 16]


def test_one_is_not_asked_to_stop_too_often() -> None:
    """Many that part from a long prompt at different pages: those beyond the bound do not wait for it."""
    rig = Rig(blocks=400, block_size=4, states=100, step_tokens=32, max_running=40)
    rig.add("long", ids(200))
    for n in range(1, 20):
        rig.add(str(n), ids(200)[: 8 * n] + ids(6, seed=n))
    rig.drain()
    for name in ("long", *map(str, range(1, 20))):
        rig.assert_as_expected(name)
    mine = [work.start + work.count for plan in rig.plans for work in plan.work if work.seq == 0]
    assert len([end for end in mine if end % 8 == 0]) < 14, "of 19 that were asked for"


def test_nobody_writes_over_what_another_still_reads() -> None:
    """Two go on from one snapshot; it is no longer findable, and slots are short."""
    for slots, lost in ((2, False), (2, True), (3, True)):
        states = StatePool(slots, BlockPool(9, 2))
        first, second, third = (sequence(n, [1] * 7) for n in range(3))
        states.enter(first, 0)
        assert states.prepare(first, 2) == 2
        first.advance(computed=2)
        states.settle(first)
        states.leave(first)
        for seq in (second, third):
            seq.advance(found=2)
            states.enter(seq, 1)
        shared = second.slot
        if lost:
            states.pool.drop(second.chain.links[0])
        given = [states.prepare(seq, 2) for seq in (second, third)]
        assert given == ([2, 0] if slots == 2 else [2, 2])
        assert shared not in (second.target, third.target)
        second.advance(computed=2)
        states.settle(second)
        if slots == 2:
            assert states.prepare(third, 2) == 2
            assert third.target == shared, "nobody else reads it now"
        assert states.check([second, third]) == []


def test_states_are_counted_and_checked() -> None:
    rig = Rig(block_size=4, states=10)
    rig.add("a", ids(9), max_tokens=8)
    rig.step()
    stats = rig.scheduler.stats()
    assert (stats.states_free, stats.states_cached, stats.states_in_use) == (9, 0, 1)
    assert rig.states is not None
    rig.states.pool.allocate(1)  # nobody's
    assert any("states" in fault for fault in rig.scheduler.check())
    assert rig.scheduler.stats().failed_checks == 1


def test_snapshots_lie_on_pages() -> None:
    with pytest.raises(ValueError, match="pages of 4"):
        StatePool(3, BlockPool(3, 4), every=6)
