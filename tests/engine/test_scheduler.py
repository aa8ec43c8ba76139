from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_harness import Rig, ids

from stoker.engine.chain import ChainScheme, pack
from stoker.engine.speed import UNKNOWN_SECONDS
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.lane import Lane
from stoker.types.plan import StepPlan
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, Reasoning


def test_one_request_is_chunked_and_decoded() -> None:
    rig = Rig(step_tokens=16)
    rig.add("a", ids(40), max_tokens=5)
    rig.drain()
    rig.assert_as_expected("a")
    assert [work.count for plan in rig.plans for work in plan.work] == [16, 16, 8, 1, 1, 1, 1]
    assert rig.last["a"].output == 5


@st.composite
def scripts(draw: st.DrawFn) -> tuple[Rig, list[tuple[object, ...]]]:
    size, running = draw(st.sampled_from([1, 2, 4])), draw(st.integers(1, 6))
    rig = Rig(
        blocks=draw(st.integers(2, 24)),
        block_size=size,
        step_tokens=draw(st.sampled_from([1, 3, 8, 32])),
        max_running=running,
        lane_reserve=draw(st.sampled_from([(0.1, 0.02), (0.0, 0.0), (0.5, 0.5)])),
        states=draw(st.sampled_from([0, running, running + 1, running + 4, 40])),
        every=draw(st.sampled_from([None, size, 3 * size])),
    )
    prompts = [ids(draw(st.integers(1, 40)), seed) for seed in range(3)]
    action = st.one_of(
        st.tuples(
            st.just("add"),
            st.sampled_from(prompts),
            st.integers(0, 40),  # how much of it
            st.lists(st.integers(0, 49), max_size=3),  # and something of its own
            st.integers(1, 12),
            st.sampled_from(list(Lane)),
            st.sampled_from(["a", "b"]),
            st.sets(st.integers(0, 49), max_size=4),
            st.integers(0, 2),
        ),
        st.tuples(st.just("abort"), st.integers(0, 30)),
        st.tuples(st.just("abort in flight"), st.integers(0, 30)),
        st.tuples(st.just("step")),
        st.tuples(st.just("step")),
    )
    return rig, draw(st.lists(action, max_size=40))


def play(rig: Rig, script: list[tuple[object, ...]]) -> set[str]:
    aborted: set[str] = set()
    names: list[str] = []
    for kind, *rest in script:
        if kind == "add":
            base, cut, own, max_tokens, lane, domain, stop_ids, min_tokens = rest
            prompt = (base[:cut] + own) or [1]
            name = str(len(names))
            if len(prompt) + 1 > rig.scheduler.context:
                with pytest.raises(StokerError, match="context"):
                    rig.add(name, prompt)
                continue
            names.append(name)
            rig.add(
                name,
                prompt,
                max_tokens=max_tokens,
                lane=lane,
                domain=domain,
                stop_ids=tuple(stop_ids),
                min_tokens=min_tokens,
            )
        elif kind == "step":
            rig.step()
        else:
            plan = rig.scheduler.plan() if kind == "abort in flight" else None
            if rest[0] < len(names):
                name = names[rest[0]]
                if rig.last.get(name) is None or rig.last[name].finish is None:
                    aborted.add(name)
                rig.abort(name)
                assert rig.scheduler.abort(name) is None
            if plan is not None:
                rig.finish_step(plan)
        assert rig.scheduler.check() == []
    rig.drain()
    for name in names:
        if name in aborted:
            assert rig.last[name].finish == "abort"
        else:
            rig.assert_as_expected(name)
    return aborted


@settings(max_examples=400, deadline=None)
@given(scripts())
def test_any_schedule_reads_only_its_own_kv_and_ends(script: tuple[Rig, list[tuple[object, ...]]]) -> None:
    play(*script)


def test_a_thousand_random_aborts_leave_the_pool_whole() -> None:
    """T-78 and conservation: before, during and after admission, between plan and apply, twice, and for no one."""
    dice = random.Random(1)
    rig = Rig(blocks=40, block_size=4, step_tokens=24, max_running=6)
    live: list[str] = []
    aborts = number = 0
    while aborts < 1000:
        for _ in range(dice.randrange(3)):
            prompt = ids(dice.randrange(1, 60), dice.randrange(3))
            rig.add(str(number), prompt, max_tokens=dice.randrange(1, 30), lane=dice.choice(list(Lane)))
            live.append(str(number))
            number += 1
        plan = rig.scheduler.plan()
        for _ in range(dice.randrange(3)):
            if live:
                name = live.pop(dice.randrange(len(live)))
                rig.abort(name)
                rig.abort(name)
                aborts += 1
        assert rig.scheduler.abort("nobody") is None
        if plan is not None:
            rig.finish_step(plan)
        if live and dice.random() < 0.5:
            rig.abort(live.pop())
            aborts += 1
        assert rig.scheduler.check() == []
    rig.drain()
    for name in live:
        rig.assert_as_expected(name)
    assert rig.executor.rows.keys() <= {*rig.scheduler._residency.departed}, "the executor is told whom to forget"


def test_an_abort_frees_at_once_or_with_the_step_that_writes() -> None:
    rig = Rig(blocks=8, block_size=4, step_tokens=8)
    rig.add("a", ids(20))
    rig.add("queued", ids(20, 1))
    plan = rig.scheduler.plan()
    assert plan is not None
    rig.abort("a")
    rig.abort("queued")
    assert rig.pool.in_use > 0, "the step still writes there"
    rig.finish_step(plan)
    assert rig.pool.in_use == 0
    assert rig.scheduler.idle
    rig.add("a", ids(20))  # the id may be used again
    rig.drain()
    rig.assert_as_expected("a")


@pytest.mark.parametrize("page", [1, 4])
def test_every_pair_of_hit_and_length(page: int) -> None:
    """T-36: at least one token is left to compute, whatever share of the prompt is cached; preempted ones included."""
    for cached in range(13):
        for length in range(1, 14):
            rig = Rig(blocks=40, block_size=page)
            if cached:
                rig.add("first", ids(cached), max_tokens=1)
                rig.drain()
            rig.add("second", ids(14)[:length], max_tokens=3)
            rig.drain()
            rig.assert_as_expected("second")
            shared = min(cached, length) if ids(cached) == ids(14)[:cached] else 0
            assert rig.last["second"].cached == min(shared // page, (length - 1) // page) * page


def test_the_prompt_of_the_next_turn_finds_the_output_of_the_last() -> None:
    rig = Rig(block_size=4)
    rig.add("turn 1", ids(10), max_tokens=9)
    rig.drain()
    history = ids(10) + rig.tokens["turn 1"]
    rig.add("turn 2", [*history, 1, 2, 3], max_tokens=2)
    rig.drain()
    assert rig.last["turn 2"].cached == 16, "18 tokens have KV (the newest token was never fed), 4 full pages of it"


def test_domains_never_share_and_the_same_domain_does() -> None:
    rig = Rig(block_size=4)
    prompt = ids(20)
    for name, domain in (("a1", "a"), ("b1", "b"), ("a2", "a"), ("b2", "b"), ("none", "")):
        rig.add(name, prompt, domain=domain)
        rig.drain()
        rig.assert_as_expected(name)
    assert [rig.last[name].cached for name in ("a1", "b1", "a2", "b2", "none")] == [0, 0, 16, 16, 0]


def made(prompt: list[int], domain: str = "") -> bytes:
    scheme = ChainScheme(b"test key", "model", 4)
    return scheme.extend(b"", scheme.root(domain=domain), pack(prompt))


def test_links_that_come_with_a_prompt_are_those_the_engine_would_make() -> None:
    rig = Rig()
    rig.add("own", ids(20), max_tokens=1)
    rig.drain()
    rig.add("given", ids(20), links=made(ids(20)), max_tokens=5)
    rig.drain()
    rig.add("own again", ids(20) + rig.tokens["given"])
    rig.drain()
    assert [rig.last[name].cached for name in ("own", "given")] == [0, 16]
    assert rig.last["own again"].cached == 24, "what was generated is linked to what was given"


def test_links_of_other_tokens_hurt_only_who_sent_them() -> None:
    """The executor refuses to read KV of another prompt; tokens are compared on every hit."""
    rig = Rig()
    rig.add("honest", ids(20))
    rig.drain()
    rig.add("wrong", ids(20, seed=1), links=made(ids(20)))
    rig.drain()
    rig.add("honest again", ids(20))
    rig.drain()
    assert [rig.last[name].cached for name in ("wrong", "honest again")] == [0, 16]
    for name in rig.requests:
        rig.assert_as_expected(name)


@pytest.mark.parametrize("links", [b"x", b"x" * 16, made(ids(24)), made(ids(20))[:-1]])
def test_links_of_another_shape_are_refused(links: bytes) -> None:
    rig = Rig()
    with pytest.raises(StokerError) as failure:
        rig.add("wrong", ids(20), links=links)
    assert (failure.value.kind, failure.value.code) == (ErrorKind.INTERNAL, "invalid_links")
    assert rig.scheduler.idle


def test_a_short_question_beside_a_long_prompt_is_answered_within_three_steps() -> None:
    for long_lane in (Lane.INTERACTIVE, Lane.STANDARD, Lane.BATCH):
        for short in (1, 30, 64):
            rig = Rig(blocks=2000, block_size=16, step_tokens=128, context=30_000)
            rig.add("long", [1] * 20_000, lane=long_lane)
            rig.step()
            asked = rig.steps
            rig.add("short", ids(short), max_tokens=1, lane=Lane.INTERACTIVE)
            while "short" not in rig.last:
                rig.step()
            assert rig.steps - asked <= 3
            assert rig.last["short"].waited == rig.steps - asked


def test_a_long_prompt_gets_on_beside_a_stream_of_short_ones() -> None:
    rig = Rig(blocks=400, block_size=4, step_tokens=32, max_running=8)
    rig.add("long", ids(320), max_tokens=1)
    for n in range(100):
        if "long" in rig.last:
            break
        for k in range(4):
            rig.add(f"{n}-{k}", ids(30, 2 + n * 4 + k), max_tokens=1)
        rig.step()
    assert rig.steps <= 320 / 16, "half of the budget is the oldest's"


def test_recomputed_tokens_are_counted_exactly_and_never_as_cached() -> None:
    rig = Rig(blocks=12, block_size=2, step_tokens=32, max_running=4)
    rig.add("old", ids(6), max_tokens=14)
    rig.add("young", ids(6, 1), max_tokens=14)
    rig.drain()
    computed: dict[tuple[int, int], int] = {}
    for plan in rig.plans:
        for work in plan.work:
            for position in range(work.start, work.start + work.count):
                computed[work.seq, position] = computed.get((work.seq, position), 0) + 1
    stats = rig.scheduler.stats()
    assert stats.preemptions > 0
    assert stats.recomputed_tokens == sum(times - 1 for times in computed.values()) > 0
    assert stats.prefill_tokens + stats.decode_tokens == sum(computed.values())
    assert stats.cached_tokens == 0
    assert rig.last["young"].cached == 0


def test_finish_reasons() -> None:
    rig = Rig()
    rig.add("free", ids(8), max_tokens=6)
    rig.drain()
    told = rig.tokens["free"]
    assert (rig.last["free"].finish, rig.last["free"].output) == ("length", 6)
    first = told.index(told[3])
    rig.add("stop", ids(8), max_tokens=6, stop_ids=(told[3],))
    rig.drain()
    assert rig.tokens["stop"] == told[:first], "the stop id is no part of the output"
    assert (rig.last["stop"].finish, rig.last["stop"].output) == ("stop", first + 1), "and yet it was computed"
    rig.add("minimum", ids(8), max_tokens=6, stop_ids=(told[0],), min_tokens=6)
    rig.drain()
    assert (rig.tokens["minimum"], rig.last["minimum"].finish) == (told, "length")


def test_max_tokens_is_clamped_to_the_context_and_to_the_pool() -> None:
    for rig in (Rig(blocks=100, context=20), Rig(blocks=5, block_size=4)):
        rig.add("a", ids(15), max_tokens=1000)
        rig.add("b", ids(19, 1), max_tokens=None)
        rig.drain()
        assert [(len(rig.tokens[name]), rig.last[name].finish) for name in "ab"] == [(5, "length"), (1, "length")]


def test_a_sequence_with_broken_logits_ends_alone_and_takes_its_pages_along() -> None:
    rig = Rig()
    number = rig.add("broken", ids(20))
    rig.executor.fail.add(number)
    rig.add("healthy", ids(20, 1))
    rig.drain()
    rig.assert_as_expected("healthy")
    assert (rig.last["broken"].finish, rig.last["broken"].error) == ("error", "logits are not finite")
    rig.add("again", ids(20))
    rig.drain()
    assert rig.last["again"].cached == 0
    rig.assert_as_expected("again")


def test_statistics_between_steps() -> None:
    rig = Rig(blocks=10, block_size=4, step_tokens=16)
    rig.add("a", ids(9), max_tokens=5)
    rig.step()
    stats = rig.scheduler.stats()
    assert (stats.steps, stats.running, stats.waiting, stats.step_seconds) == (1, 1, 0, 1.0)
    assert (stats.blocks_in_use, stats.wasted_slots) == (3, 3), "9 tokens in 12 slots"
    assert stats.blocks_free + stats.blocks_cached + stats.blocks_in_use == 10
    rig.drain()
    stats = rig.scheduler.stats()
    assert (stats.prefill_tokens, stats.decode_tokens, stats.wasted_slots) == (9, 4, 0)


def test_what_waits_is_told_in_tokens_and_by_lane() -> None:
    rig = Rig(blocks=32, max_running=1, step_tokens=8)
    rig.add("first", ids(16), max_tokens=1)
    rig.drain()
    rig.add("running", ids(20, seed=1))
    rig.step()
    rig.add("cached", [*ids(16), 1, 2], lane=Lane.BATCH)
    rig.add("new", ids(10, seed=2), lane=Lane.BATCH)
    rig.add("none of it", ids(4, seed=3), lane=Lane.STANDARD)
    stats = rig.scheduler.stats()
    assert (stats.kv_tokens, stats.waiting, stats.waiting_by_lane) == (128, 3, (0, 1, 2))
    assert stats.queued_tokens == (20 - 8) + 2 + 10 + 4
    rig.drain()
    assert rig.scheduler.stats().queued_tokens == 0


def test_speed_is_measured_and_a_step_in_flight_is_predicted() -> None:
    rig = Rig(step_tokens=16)
    assert rig.scheduler.stats().predicted == 0.0
    rig.add("a", ids(16), max_tokens=3)
    plan = rig.scheduler.plan()
    assert plan is not None
    assert rig.scheduler.stats().predicted == rig.scheduler.predicted == UNKNOWN_SECONDS
    rig.finish_step(plan)
    assert rig.scheduler.stats().prefill_rate == 16.0, "16 tokens in a second of the rig's clock"
    rig.step()
    assert rig.scheduler.stats().decode_seconds == 1.0
    rig.add("b", ids(8, seed=1))
    plan = rig.scheduler.plan()
    assert plan is not None
    assert rig.scheduler.predicted == 1.0 + 8 / 16
    rig.finish_step(plan)
    assert rig.scheduler.predicted == 0.0


def test_tokens_computed_for_nobody_are_counted() -> None:
    """An abort that is read between two steps came while the last of them ran."""
    rig = Rig(step_tokens=8)
    rig.add("a", ids(20))
    rig.step()
    rig.abort("a")
    assert rig.scheduler.stats().after_abort == 8
    rig.add("b", ids(3, seed=1), max_tokens=9)
    rig.step()
    rig.add("waits", ids(3, seed=2))
    rig.abort("waits")
    assert rig.scheduler.stats().after_abort == 8, "nothing was computed for it"
    plan = rig.scheduler.plan()
    assert plan is not None
    rig.abort("b")
    rig.finish_step(plan)
    assert rig.scheduler.stats().after_abort == 8 + 1, "only the step in flight: the one before was of use"
    rig.drain()


def test_a_damaged_pool_is_counted_and_does_not_stop_the_loop() -> None:
    """T-77."""
    rig = Rig(blocks=8)
    rig.pool.allocate(1)  # nobody's
    rig.add("a", ids(8))
    for _ in range(10):
        rig.step()
    rig.assert_as_expected("a")
    assert rig.scheduler.check()
    assert rig.scheduler.stats().failed_checks == 1


def test_plans_are_the_same_whenever_the_same_things_happen() -> None:
    def run() -> list[object]:
        rig = Rig(blocks=20, block_size=2, step_tokens=16, max_running=4)
        for n in range(6):
            rig.add(str(n), ids(9, n % 3), max_tokens=9, lane=Lane(n % 3))
        rig.drain()
        return list(rig.plans)

    assert run() == run()


@pytest.mark.parametrize(
    ("prompt", "sampling", "code"),
    [
        ([], SamplingParams(), "empty_prompt"),
        ([50], SamplingParams(), "invalid_token_id"),
        ([1, -1], SamplingParams(), "invalid_token_id"),
        ([1], SamplingParams(logit_bias={50: 1.0}), "invalid_logit_bias"),
        ([1], SamplingParams(max_tokens=0), "invalid_max_tokens"),
        ([1] * 16, SamplingParams(), "context_length_exceeded"),
    ],
)
def test_what_can_never_run_is_refused_at_once(prompt: list[int], sampling: SamplingParams, code: str) -> None:
    rig = Rig(blocks=4, block_size=4)
    with pytest.raises(StokerError) as refused:
        rig.scheduler.add(Generate(id="x", prompt_ids=prompt, sampling=sampling))
    assert (refused.value.kind, refused.value.code) == (ErrorKind.INVALID, code)
    assert rig.scheduler.idle
    if code == "context_length_exceeded":
        assert "16 tokens" in refused.value.message
        assert refused.value.message.count("16") == 2


def test_lines_are_bounded_each_by_itself() -> None:
    rig = Rig(max_waiting=1)
    rig.add("a", ids(3), lane=Lane.BATCH)
    with pytest.raises(StokerError) as refused:
        rig.add("b", ids(3), lane=Lane.BATCH)
    assert (refused.value.kind, refused.value.code) == (ErrorKind.CAPACITY, "queue_full")
    assert refused.value.retry_after is not None
    assert 1 <= refused.value.retry_after <= 60
    rig.add("c", ids(3), lane=Lane.INTERACTIVE)
    with pytest.raises(StokerError) as refused:
        rig.add("c", ids(3))
    assert refused.value.code == "duplicate_request_id"
    rig.drain()


def test_larger_chunks_only_while_nobody_decodes() -> None:
    rig = Rig(blocks=200, block_size=4, step_tokens=16, prefill_tokens=64)
    rig.add("first", [i % 50 for i in range(200)], max_tokens=50)
    first = rig.step()
    assert first is not None
    assert [work.count for work in first.work] == [64]
    while rig.scheduler.stats().decode_tokens == 0:
        rig.step()
    rig.add("second", [i * i % 50 for i in range(200)], max_tokens=1)
    beside = rig.step()
    assert beside is not None
    assert sum(work.count for work in beside.work) == 16


def test_a_held_request_is_stepped_over_until_it_is_released() -> None:
    rig = Rig()
    request = Generate(id="held", prompt_ids=[1, 2, 3], sampling=SamplingParams(max_tokens=2))
    rig.scheduler.add(request, held=True)
    rig.requests["held"], rig.tokens["held"] = request, []
    rig.executor.domains.append("")
    rig.add("free", [4, 5, 6])
    while rig.step():
        pass
    assert rig.tokens["held"] == []
    rig.assert_as_expected("free")
    assert not rig.scheduler.idle
    rig.scheduler.release("nobody")
    rig.scheduler.release("held")
    rig.drain()
    rig.assert_as_expected("held")


def test_what_may_be_sampled_is_in_the_plan() -> None:
    """With every start, so that a log of plans replays and a preempted sequence goes on."""
    rig = Rig()
    reasoning = Reasoning(format="hermes", start="none", budget=5, end=(1,))
    request = Generate(
        id="a", prompt_ids=[1, 2], sampling=SamplingParams(max_tokens=1), grammar="start: x", reasoning=reasoning
    )
    rig.scheduler.add(request)
    rig.executor.domains.append("")
    plan = rig.scheduler.plan()
    assert plan is not None
    (start,) = msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=StepPlan).starts
    assert (start.grammar, start.reasoning) == ("start: x", reasoning)
