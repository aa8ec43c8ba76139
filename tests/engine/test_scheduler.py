from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_harness import Rig

from stoker.types.errors import ErrorKind, StokerError
from stoker.types.lane import Lane


def ids(n: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(50), k=n)


def test_one_request_is_chunked_and_decoded() -> None:
    rig = Rig(step_tokens=16)
    rig.add("a", ids(40), max_tokens=5)
    rig.drain()
    rig.assert_as_expected("a")
    assert [work.count for plan in rig.plans for work in plan.work] == [16, 16, 8, 1, 1, 1, 1]
    assert rig.last["a"].output == 5


@st.composite
def scripts(draw: st.DrawFn) -> tuple[Rig, list[tuple[object, ...]]]:
    rig = Rig(
        blocks=draw(st.integers(2, 24)),
        block_size=draw(st.sampled_from([1, 2, 4])),
        step_tokens=draw(st.sampled_from([1, 3, 8, 32])),
        max_running=draw(st.integers(1, 6)),
        lane_reserve=draw(st.sampled_from([(0.1, 0.02), (0.0, 0.0), (0.5, 0.5)])),
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


def test_refusals() -> None:
    rig = Rig(blocks=4, block_size=4, max_waiting=1)
    with pytest.raises(StokerError) as refused:
        rig.add("long", ids(16))
    assert refused.value.code == "context_length_exceeded"
    assert "16 tokens" in refused.value.message
    rig.add("a", ids(3))
    with pytest.raises(StokerError) as refused:
        rig.add("b", ids(3))
    assert (refused.value.kind, refused.value.code) == (ErrorKind.CAPACITY, "queue_full")
    assert refused.value.retry_after is not None
