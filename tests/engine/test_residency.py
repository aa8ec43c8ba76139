"""Who is let in, who is displaced and who is preempted, seen through the scheduler and its plans."""

from __future__ import annotations

import random

import pytest
from scheduler_harness import Rig, ids

from stoker.types.lane import Lane


def test_requests_that_share_a_prompt_compute_it_once() -> None:
    """n > 1 and a shared system prompt, all arriving in one step."""
    rig = Rig(blocks=60, block_size=4, step_tokens=16)
    system = ids(40)
    for n in range(5):
        rig.add(str(n), [*system, n, n, n], max_tokens=3)
    rig.drain()
    stats = rig.scheduler.stats()
    assert stats.prefill_tokens == 43 + 4 * 3
    assert [rig.last[str(n)].cached for n in range(5)] == [0, 40, 40, 40, 40]


def test_a_follower_goes_on_alone_when_its_leader_goes_away() -> None:
    rig = Rig(blocks=60, block_size=4, step_tokens=8)
    rig.add("leader", ids(40))
    rig.add("follower", ids(40))
    rig.add("other", ids(9, 1))
    plan = rig.step()
    assert plan is not None
    assert [start.seq for start in plan.starts] == [0, 2], "the follower is stepped over"
    rig.abort("leader")
    rig.drain()
    rig.assert_as_expected("follower")
    assert rig.last["follower"].cached == 4, "half of the budget for the leader's one step was a page"


def test_nobody_waits_for_a_leader_in_a_lower_lane() -> None:
    rig = Rig(blocks=60, block_size=4, step_tokens=8)
    rig.add("leader", ids(40), lane=Lane.BATCH)
    rig.step()
    rig.add("urgent", ids(40), lane=Lane.INTERACTIVE)
    rig.step()
    assert rig.plans[-1].starts[0].seq == 1
    rig.drain()
    rig.assert_as_expected("urgent")


@pytest.mark.parametrize("lane", [Lane.STANDARD, Lane.BATCH])
def test_a_lower_lane_never_starves(lane: Lane) -> None:
    """Interactive work without end, more of it than the engine can do; the reserve bounds the wait."""
    rig = Rig(blocks=400, block_size=4, step_tokens=32, max_running=8)
    rig.add("low", ids(40), max_tokens=4, lane=lane)
    for n in range(200):
        if rig.last.get("low") is not None and rig.last["low"].finish:
            break
        for k in range(4):
            rig.add(f"{n}-{k}", ids(30, 2 + n * 4 + k), max_tokens=2, lane=Lane.INTERACTIVE)
        rig.step()
    reserve = {Lane.STANDARD: 3, Lane.BATCH: 1}[lane]
    assert rig.steps <= -(-40 // reserve) + 4
    assert rig.scheduler.stats().waiting > 40, "the higher lane did have more to do than could be done"


def test_interactive_work_displaces_batch_work_for_slots() -> None:
    """T-87: the batch lane has every slot; an interactive request does not wait for one of its streams to end."""
    rig = Rig(blocks=400, block_size=4, step_tokens=32, max_running=4)
    for n in range(6):
        rig.add(f"batch {n}", ids(10, n), max_tokens=200, lane=Lane.BATCH)
    for _ in range(5):
        rig.step()
    assert rig.scheduler.stats().running == 4
    asked = rig.steps
    rig.add("urgent", ids(10, 77), max_tokens=2, lane=Lane.INTERACTIVE)
    while "urgent" not in rig.last:
        rig.step()
    assert rig.steps - asked <= 1
    assert rig.scheduler.stats().preemptions == 1
    rig.drain()
    for n in range(6):
        rig.assert_as_expected(f"batch {n}")


def test_interactive_work_displaces_batch_work_for_blocks() -> None:
    rig = Rig(blocks=20, block_size=4, step_tokens=64, max_running=8)
    for n in range(3):
        rig.add(f"batch {n}", ids(20, n), max_tokens=20, lane=Lane.BATCH)
    rig.step()
    asked = rig.steps
    rig.add("urgent", ids(60, 9), max_tokens=2, lane=Lane.INTERACTIVE)
    while "urgent" not in rig.last:
        rig.step()
    assert rig.steps - asked <= 1
    rig.drain()
    for n in range(3):
        rig.assert_as_expected(f"batch {n}")


@pytest.mark.parametrize("lane", [Lane.STANDARD, Lane.BATCH])
def test_a_lower_lane_gets_a_slot_from_higher_ones_that_could_fill_them_all(lane: Lane) -> None:
    rig = Rig(blocks=400, block_size=4, step_tokens=32, max_running=4)
    for n in range(30):
        rig.add(str(n), ids(4, n), max_tokens=10, lane=Lane.INTERACTIVE)
    rig.step()
    rig.add("low", ids(4, 99), max_tokens=1, lane=lane)
    rig.drain()
    assert rig.first_step["low"] <= 13, "it waits for one of the four to end, not for thirty"


def test_a_block_that_several_hold_is_not_counted_as_freed_by_one() -> None:
    """The interactive request needs more than the batch lane holds alone: its prefix is held by a higher lane too."""
    rig = Rig(blocks=20, block_size=4, step_tokens=64)
    shared = ids(40)
    rig.add("standard", [*shared, 1], max_tokens=20, lane=Lane.INTERACTIVE)
    rig.step()
    rig.add("batch", [*shared, 2], max_tokens=20, lane=Lane.BATCH)
    rig.step()
    assert rig.scheduler.stats().running == 2
    rig.add("urgent", ids(40, 5), max_tokens=1, lane=Lane.INTERACTIVE)
    rig.step()
    assert rig.scheduler.stats().preemptions == 0
    rig.drain()


def test_whom_a_higher_lane_overtook_is_no_longer_the_leader() -> None:
    rig = Rig(blocks=60, block_size=4, step_tokens=16)
    rig.add("batch", ids(40), lane=Lane.BATCH)
    rig.step()
    rig.add("urgent 1", ids(40), lane=Lane.INTERACTIVE)
    rig.step()
    rig.add("urgent 2", ids(40), lane=Lane.INTERACTIVE)
    plan = rig.step()
    assert plan is not None
    assert not plan.starts, "the second waits for the first, not for the batch request, and does not compute it again"
    rig.drain()
    assert rig.last["urgent 2"].cached == 36


def test_prompts_that_do_not_fit_together_run_one_after_the_other() -> None:
    rig = Rig(blocks=14, block_size=4, step_tokens=8)
    for n in range(3):
        rig.add(str(n), ids(40, n), max_tokens=2)
    rig.drain()
    assert rig.scheduler.stats().preemptions == 0


def test_an_older_prefill_takes_blocks_from_a_younger_decode_that_was_planned_before_it() -> None:
    rig = Rig(blocks=12, block_size=4, step_tokens=4)
    rig.add("long", ids(40), max_tokens=2)
    rig.add("young", ids(3, 1), max_tokens=30)
    rig.drain()
    assert rig.scheduler.stats().preemptions > 0
    for name in ("long", "young"):
        rig.assert_as_expected(name)


def test_nobody_is_displaced_in_vain() -> None:
    """Displacing all of the batch lane would still not make room beside the interactive sequence that runs."""
    rig = Rig(blocks=20, block_size=4, step_tokens=64)
    rig.add("urgent 1", ids(40), max_tokens=20, lane=Lane.INTERACTIVE)
    rig.add("batch", ids(12, 1), max_tokens=3, lane=Lane.BATCH)
    rig.step()
    rig.add("urgent 2", ids(60, 2), lane=Lane.INTERACTIVE)
    rig.step()
    assert rig.scheduler.stats().preemptions == 0
    rig.drain()


def test_a_preempted_sequence_keeps_its_place_and_its_tokens() -> None:
    """T-88. Both are standard; growth of the older preempts the younger, which comes back before a later one."""
    rig = Rig(blocks=12, block_size=2, step_tokens=32, max_running=4)
    rig.add("old", ids(6), max_tokens=14)
    rig.add("young", ids(6, 1), max_tokens=14)
    while rig.scheduler.stats().preemptions == 0:
        rig.step()
    kept = list(rig.tokens["young"])
    assert kept
    rig.add("late", ids(2, 2), max_tokens=1)
    rig.drain()
    assert rig.tokens["young"][: len(kept)] == kept
    entered = [start.seq for plan in rig.plans for start in plan.starts]
    assert entered == [0, 1, 1, 2]
    for name in ("old", "young", "late"):
        rig.assert_as_expected(name)


def test_the_victim_never_stands_above_whom_it_makes_room_for() -> None:
    """Seen from outside: whoever is preempted, somebody of a higher lane or an older one of its own lane gets work."""
    dice = random.Random(3)
    for _ in range(60):
        rig = Rig(blocks=12, block_size=2, step_tokens=16, max_running=5)
        rank = [(dice.choice(list(Lane)), n) for n in range(8)]
        for lane, n in rank:
            rig.add(str(n), ids(dice.randrange(1, 12), n), max_tokens=dice.randrange(1, 10), lane=lane)
            rig.step()
            gone = {seq.number for line in rig.scheduler._residency.waiting.values() for seq in line if seq.reached}
            for victim in gone & set(rig.plans[-1].finished):
                assert any(rank[work.seq] < rank[victim] for work in rig.plans[-1].work)
        rig.drain()


def test_the_oldest_of_the_highest_lane_is_never_preempted() -> None:
    rig = Rig(blocks=16, block_size=2, step_tokens=16, max_running=5)
    for n in range(5):
        rig.add(str(n), ids(6, n), max_tokens=20)
    rig.drain()
    assert rig.scheduler.stats().preemptions > 0
    entered = [start.seq for plan in rig.plans for start in plan.starts]
    assert entered.count(0) == 1
    assert [s for i, s in enumerate(entered) if s not in entered[:i]] == [0, 1, 2, 3, 4], "let in in order of arrival"


def test_a_few_small_requests_overtake_a_long_one_that_waits_for_blocks() -> None:
    rig = Rig(blocks=100, block_size=4, step_tokens=64, max_running=40)
    rig.add("runs", ids(200), max_tokens=120)
    rig.step()
    rig.add("long", ids(300, 1), max_tokens=1)
    rig.add("not small", ids(30, 2), max_tokens=1)
    for n in range(30):
        rig.add(f"small {n}", ids(3, 3 + n), max_tokens=2)
    rig.drain()
    entered_in = {start.seq: step for step, plan in enumerate(rig.plans) for start in plan.starts}
    assert [seq for seq in range(33) if entered_in[seq] < entered_in[1]] == [0, *range(3, 19)], (
        "16 small ones, in order"
    )


def test_a_waiting_head_is_tried_again_when_a_reader_lets_go() -> None:
    rig = Rig(blocks=4, block_size=4)
    rig.add("first", ids(8), max_tokens=1)
    rig.drain()
    table = [block for block in range(4) if rig.pool._blocks[block].link is not None]
    assert len(table) == 2
    for block in table:
        rig.pool.pin(block)
    rig.add("second", ids(12, 1), max_tokens=1)
    assert rig.step() is None
    assert rig.step() is None
    for block in table:
        rig.pool.unpin(block)
    rig.drain()
    rig.assert_as_expected("second")


def test_a_lower_lane_does_not_take_the_blocks_that_a_head_waits_for() -> None:
    rig = Rig(blocks=20, block_size=4, step_tokens=64)
    rig.add("runs", ids(40), max_tokens=8, lane=Lane.INTERACTIVE)
    rig.step()
    rig.add("head", ids(60, 1), max_tokens=1, lane=Lane.INTERACTIVE)
    rig.add("batch", ids(12, 2), max_tokens=30, lane=Lane.BATCH)
    rig.drain()
    entered = [start.seq for plan in rig.plans for start in plan.starts]
    assert entered == [0, 1, 2]


def test_those_inside_keep_room_to_grow() -> None:
    """Both would fit now; the first is about to need the blocks, so letting the second in would soon undo it."""
    rig = Rig(blocks=10, block_size=4, step_tokens=64)
    rig.add("first", ids(16), max_tokens=12)
    rig.step()
    rig.add("second", ids(16, 1), max_tokens=8)
    rig.drain()
    assert rig.scheduler.stats().preemptions == 0
