"""The simulated fleet of bench.routing: right against an outside reference where that is at hand, and in itself."""

from __future__ import annotations

import importlib.util
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import SHARED, needs_shared

from bench.routing.__main__ import main
from bench.routing.cache import Cache, Changes
from bench.routing.judge import Found, judge
from bench.routing.points import Point, Rig, Scale, load
from bench.routing.segments import segment
from bench.routing.simulation import Outcome

REFERENCE = SHARED / "routing" / "routing_sim.py"
# The reference leaves closing its files to the garbage collector.
leaves_files_open = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
SCALE = Scale(replicas=4, agent_seconds=400.0, searches=5)


def chat_lines(count: int, seed: int) -> list[str]:
    """Conversations that grow, with one head that all have and a part-filled last block each."""
    draw = random.Random(seed)
    histories: list[list[int]] = []
    lines: list[str] = []
    fresh = 1
    for at in range(count):
        if histories and draw.random() < 0.6:
            history = draw.choice(histories)
        else:
            history = [0]
            histories.append(history)
        if len(history) > 12:
            del history[draw.randrange(2, 6) :]
        history += range(fresh, fresh + draw.randrange(1, 6))
        fresh += 10
        last = draw.randrange(1, 513)
        prompt = [*history, fresh + 7]
        tokens = 512 * (len(prompt) - 1) + last
        line = {"timestamp": at * 150, "input_length": tokens, "output_length": draw.randrange(1, 80)}
        lines.append(json.dumps({**line, "hash_ids": prompt}))
    return lines


def agent_trace(seed: int) -> dict[str, Any]:
    """Turns that re-send what was before, and now and then two sub-agents at once."""
    draw = random.Random(seed)
    tools, system = 64 * 20, 64 * 10
    blocks = list(range(40))
    requests: list[dict[str, Any]] = []

    def call(ids: list[int]) -> dict[str, Any]:
        think = draw.uniform(0, 40)
        kind = {"type": "s", "in": len(ids) * 64 + 13, "out": draw.randrange(10, 200), "think_time": think}
        return {"t": 0.0, "hash_ids": list(ids), **kind}

    fresh = 1000
    for turn in range(draw.randrange(4, 12)):
        blocks += range(fresh, fresh + draw.randrange(5, 60))
        fresh += 100
        requests.append(call(blocks))
        for _ in range(2 if turn % 3 == 2 else 0):
            own = [*blocks[:30], *range(fresh, fresh + 30)]
            fresh += 100
            sub = {"type": "subagent", "tool_tokens": tools, "system_tokens": system}
            requests.append({**sub, "requests": [call(own), call([*own, fresh, fresh + 1])]})
            fresh += 100
    return {"tool_tokens": tools, "system_tokens": system, "requests": requests}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    (folder / "mooncake").mkdir()
    (folder / "agent").mkdir()
    for name, seed in (("conversation", 1), ("synthetic", 2)):
        text = "\n".join(chat_lines(900, seed))
        (folder / "mooncake" / f"{name}_trace.jsonl").write_text(text, encoding="utf-8")
    for number in range(6):
        (folder / "agent" / f"trace_{number}.json").write_text(json.dumps(agent_trace(number)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("routing_reference", REFERENCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def same(own: Outcome, theirs: dict[str, Any]) -> None:
    """The reference draws ties from the same stream of random numbers, so all is equal but for rounding."""
    pairs = {"hit": own.hit, "p50": own.p50, "p90": own.p90, "p99": own.p99, "skew": own.skew, "util": own.busy}
    assert pairs == {name: pytest.approx(theirs[name], rel=1e-9) for name in pairs}
    assert own.requests == theirs["prefills"]


@needs_shared
@leaves_files_open
@pytest.mark.parametrize("policy", ["rr", "lot", "tree", "dcost4", "pool"])
@pytest.mark.parametrize("capacity", ["0.1M", "20%"])
def test_chat_is_as_in_the_reference(traces: Path, reference: ModuleType, policy: str, capacity: str) -> None:
    scale = Scale(replicas=8)
    rig = Rig(
        Point(trace="conversation", load="rr0.85", capacity=capacity), load(traces, "conversation", 3, scale), 3, scale
    )
    work = reference.mooncake(str(traces / "mooncake" / "conversation_trace.jsonl"), "conv", 2, 1800.0, 3)
    assert rig.capacity == (int(work.unique * 0.2 / 8) if capacity == "20%" else 100_000)
    same(rig.run(policy), reference.simulate(work, 8, rig.capacity, policy, scale=1 / rig.load, seed=3))


@needs_shared
@leaves_files_open
@pytest.mark.parametrize("policy", ["rr", "lot", "tree", "dcost4", "pool"])
def test_agents_are_as_in_the_reference(traces: Path, reference: ModuleType, policy: str) -> None:
    rig = Rig(Point(trace="agent", load="pool0.6", capacity="0.02M"), load(traces, "agent", 2, SCALE), 2, SCALE)
    work = reference.Agents(str(traces / "agent"), 2)
    theirs = reference.simulate(work, 4, rig.capacity, policy, lam=rig.load * 4, horizon=400.0, seed=2)
    same(rig.run(policy), theirs)


def test_the_product_is_near_the_best_opponent_here_too(traces: Path) -> None:
    """Small traces, so with wide margins; the real ones are the benchmark's. Every policy of the product runs."""
    rig = Rig(Point(trace="agent", load="pool0.6", capacity="0.04M"), load(traces, "agent", 2, SCALE), 2, SCALE)
    own, best, blind = rig.run("predicted_seconds"), rig.run("dcost4"), rig.run("least_tokens")
    assert own.hit > 0.9 * best.hit
    assert own.hit > blind.hit
    assert own.p99 < blind.p99
    assert rig.run("round_robin").hit < own.hit
    assert rig.run("affinity").hit > rig.run("round_robin").hit


def test_a_fleet_far_beyond_its_limit_still_serves_all(traces: Path) -> None:
    """Waits of minutes, contexts that do not fit: where a server would refuse new sessions, a comparison must not."""
    rig = Rig(Point(trace="agent", load="pool0.85", capacity="0.005M"), load(traces, "agent", 2, SCALE), 2, SCALE)
    outcome = rig.run("predicted_seconds", 8.0)
    assert outcome.p99 > 60.0
    assert outcome.waiting > 0


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=30),
    st.integers(100, 2000),
)
def test_a_cache_of_segments_is_one_of_tokens(walks: list[list[int]], capacity: int) -> None:
    """Against a list of single tokens in the order in which they leave."""
    prompts = [[(tuple(walk[: at + 1]), 64 if at < 5 else 30) for at in range(len(walk))] for walk in walks]
    paths, segments = segment(prompts)
    cache, order = Cache(capacity, segments.tokens), list[tuple[object, int]]()
    held: dict[int, int] = {}
    for prompt, path in zip(prompts, paths, strict=True):
        assert sum(segments.tokens[s] for s in path) == sum(tokens for _, tokens in prompt)
        units = [(key, token) for key, tokens in prompt for token in range(tokens)]
        there = set(order)
        known = next((at for at, unit in enumerate(units) if unit not in there), len(units))
        assert cache.match(path) == known
        changes = Changes()
        cache.insert(path, changes)
        touched = set(units)
        order = [unit for unit in order if unit not in touched] + units[::-1]
        order = order[max(len(order) - capacity, 0) :]
        assert cache.used == len(order)
        held.update({s: blocks for s, _, blocks in [*changes.gained, *changes.lost]})
        told = {s: blocks for s, blocks in held.items() if blocks}
        assert told == {s: tokens // 64 for s, tokens in cache.resident.items() if tokens // 64}


def outcome(hit: float = 0.8, p99: float = 1.0) -> Outcome:
    values = {"hit": hit, "p50": 0.1, "p90": 0.5, "p99": p99, "skew": 1.0, "busy": 0.5, "slots_busy": 0.1}
    return Outcome(**values, work=1.0, rate=1.0, requests=10, waiting=0)


def found(change: Callable[[Found], None] = lambda _: None) -> list[Found]:
    """Three seeds at which the judged policy is as good as all others, then changed."""
    point = Point(trace="agent", load="pool0.6", capacity="2M", steep=True)
    names = ("rr", "lot", "tree", "dcost4", "pool", "own")
    three = [
        Found(
            point=point,
            seed=seed,
            policy="own",
            load=1.0,
            capacity=1,
            at={name: outcome() for name in names},
            harder={name: outcome(0.75) for name in ("pool", "own")},
        )
        for seed in (1, 2, 3)
    ]
    for one in three:
        change(one)
    return three


def test_as_good_is_good_enough() -> None:
    assert [verdict.missed for verdict in judge(found())] == [[]]


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("of dcost4's, must be 0.97", lambda one: one.at.update(dcost4=outcome(0.83))),
        ("of dcost4's, may be 1.3", lambda one: one.at.update(dcost4=outcome(p99=0.76))),
        ("of tree's", lambda one: one.at.update(tree=outcome(0.85))),
        ("10 % more load", lambda one: one.harder.update(own=outcome(0.69))),
        ("of dcost4's, may be 1.3", lambda one: one.at.update(own=outcome(p99=float("nan")))),
    ],
)
def test_each_miss_is_told(what: str, change: Callable[[Found], None]) -> None:
    (verdict,) = judge(found(change))
    assert len(verdict.missed) == 1
    assert what in verdict.missed[0]


def test_one_bad_seed_of_three_is_noise() -> None:
    three = found()
    three[1].at["own"] = outcome(0.1, 100.0)
    assert not judge(three)[0].missed


def test_the_command_writes_its_report(traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.routing.__main__.QUICK", SCALE)
    monkeypatch.setattr(
        "bench.routing.__main__.QUICK_POINTS",
        (
            Point(trace="agent", load="pool0.6", capacity="0.04M", steep=True),
            Point(trace="synthetic", load="rr0.85", capacity="25%"),
        ),
    )
    (tmp_path / "agent").symlink_to(traces / "agent")
    file = tmp_path / "report.json"
    code = main(["--traces", str(tmp_path), "--json", str(file), "--quick"])
    report = json.loads(file.read_text(encoding="utf-8"))
    assert code == (0 if report["ok"] else 1)
    assert "points hold" in report["figure"]
    (row,) = report["rows"]  # the folder of the other trace is not there
    assert {"trace", "load", "capacity", "hit_ratio", "p99_rr", "p99_pool", "skew", "seed", "ok"} <= row.keys()
    assert report["ok"] is row["ok"]


def test_without_traces_nothing_is_claimed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--traces", str(tmp_path), "--json", str(tmp_path / "x.json")]) == 2
    assert not (tmp_path / "x.json").exists()
    with pytest.raises(SystemExit):
        main(["--traces", str(tmp_path / "none"), "--json", "x"])
    assert "is no folder" in capsys.readouterr().err
