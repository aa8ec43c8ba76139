"""The workloads' sizes and arithmetic."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.workloads import FULL, QUICK, Agent, Prompts, Timing, Timings, sizes_from

AGENTS = st.builds(
    Agent,
    sessions=st.integers(1, 4),
    turns=st.integers(1, 5),
    prefix=st.integers(0, 30),
    tool=st.integers(1, 10),
    output=st.integers(1, 10),
)


def common(left: list[int], right: list[int]) -> int:
    count = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        count += 1
    return count


@settings(max_examples=50, deadline=None)
@given(AGENTS)
def test_agent_arithmetic_is_that_of_the_prompts(agent: Agent) -> None:
    # From a space this large two random ids are not equal by chance, so common prefixes are exactly the intended ones.
    sessions = Prompts("seed", 0, 1 << 60).agent(agent)
    assert [[len(turn) for turn in turns] for turns in sessions] == [
        [agent.prompt_tokens(turn) for turn in range(agent.turns)]
    ] * agent.sessions
    seen: list[list[int]] = []
    reusable = 0
    for turn in range(agent.turns):
        for session in sessions:
            reusable += max((common(session[turn], other) for other in seen), default=0)
            seen.append(session[turn])
    assert agent.ideal_cached_tokens == reusable
    assert agent.total_prompt_tokens == sum(len(turn) for turns in sessions for turn in turns)


def test_agent_of_the_published_size() -> None:
    assert (FULL.agent.total_prompt_tokens, FULL.agent.ideal_cached_tokens) == (191_040, 169_432)


def test_prompts_repeat_for_a_seed_and_differ_otherwise() -> None:
    first, again, other = Prompts("a"), Prompts("a"), Prompts("b")
    assert first.ids("x", 64) == again.ids("x", 64)
    assert first.ids("x", 64) != other.ids("x", 64)
    assert first.ids("x", 64) != first.ids("y", 64)
    many = first.many("z", 20, 32)
    assert len({tuple(prompt) for prompt in many}) == 20
    assert all(first.low <= one < first.high for prompt in many for one in prompt)


@pytest.mark.parametrize("sizes", [FULL, QUICK])
def test_sizes_survive_the_pipe(sizes: object) -> None:
    assert sizes_from(asdict(sizes)) == sizes  # type: ignore[call-overload]


def test_metrics_from_timings() -> None:
    slow = Timing(start=10.0, first=12.0, last=15.0, prompt=100, output=31, cached=50)
    fast = Timing(start=10.0, first=11.0, last=12.0, prompt=100, output=31, cached=90)
    both = Timings([slow, fast])
    assert both.single() == {"decode_tok_s": pytest.approx((10 + 30) / 2), "ttft_s": pytest.approx(1.5)}
    assert both.prefill() == {"prefill_tok_s": pytest.approx((50 + 100) / 2)}
    assert both.concurrent() == {
        "total_tok_s": pytest.approx(262 / 5),
        "output_tok_s": pytest.approx(62 / 5),
        "concurrent_ttft_s": pytest.approx(1.5),
    }
    agent = Agent(sessions=1, turns=2, prefix=60, tool=40, output=0)
    assert both.agent(agent) == {
        "agent_wall_s": pytest.approx(5),
        "agent_ttft_s": pytest.approx(1.5),
        "cached_share": pytest.approx(140 / 240),
        "cached_of_ideal": pytest.approx(140 / 100),
    }


def test_what_a_peer_does_not_tell_is_left_out() -> None:
    batch = Timings([Timing(start=0.0, first=4.0, last=4.0, prompt=8, output=8)])
    assert batch.concurrent() == {"total_tok_s": 4.0, "output_tok_s": 2.0}
    assert "cached_share" not in batch.agent(Agent(sessions=1, turns=1, prefix=4, tool=4, output=8))
