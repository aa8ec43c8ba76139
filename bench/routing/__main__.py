"""Compare the product's router with known policies on public traces, on a virtual clock.

    python -m bench.routing --traces DIR --json FILE [--policy NAME] [--quick]

DIR has folders `mooncake` and `agent`; what is not there is left out. All points with three seeds take about
ten minutes on two cores, `--quick` (one seed, fewer points, less of each trace) about one.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from bench import machine
from bench.routing.judge import Found, Reached, Verdict, goals, judge
from bench.routing.points import FOLDERS, HARDER, OPPONENTS, Point, Rig, Scale, load, present
from stoker.fleet.routing.policies import POLICIES

POINTS = (
    Point(trace="agent", load="pool0.85", capacity="5.7M"),
    Point(trace="agent", load="pool0.6", capacity="5.7M", steep=True),
    Point(trace="agent", load="rr0.85", capacity="5.7M"),
    Point(trace="agent", load="pool0.6", capacity="2M", steep=True),
    Point(trace="agent", load="rr0.85", capacity="2M"),
    Point(trace="agent", load="pool0.6", capacity="0.7M", steep=True),
    Point(trace="agent", load="pool0.85", capacity="0.7M"),
    Point(trace="agent", load="rr0.85", capacity="0.7M", steep=True),
    Point(trace="conversation", load="rr0.6", capacity="5.7M"),
    Point(trace="conversation", load="rr0.85", capacity="5.7M", steep=True),
    Point(trace="conversation", load="rr0.85", capacity="0.7M"),
    Point(trace="conversation", load="pool0.85", capacity="5.7M"),
    Point(trace="synthetic", load="rr0.85", capacity="5.7M"),
    Point(trace="synthetic", load="pool0.85", capacity="25%"),
)
QUICK_POINTS = (
    Point(trace="agent", load="pool0.6", capacity="5.7M"),
    Point(trace="agent", load="rr0.85", capacity="0.7M", steep=True),
    Point(trace="conversation", load="pool0.85", capacity="5.7M"),
    Point(trace="synthetic", load="pool0.85", capacity="25%"),
)
SEEDS, QUICK_SEEDS = (1, 2, 3), (1,)
QUICK = Scale(share=0.5, agent_seconds=1200.0, searches=6)
DEFAULT = "predicted_seconds"
console = Console(stderr=True)


class Task(msgspec.Struct, frozen=True):
    """Points that share their traffic."""

    traces: Path
    points: tuple[Point, ...]
    seed: int
    policy: str
    scale: Scale


def perform(task: Task) -> list[Found]:
    traffic = load(task.traces, task.points[0].trace, task.seed, task.scale)
    found: list[Found] = []
    for point in task.points:
        rig = Rig(point, traffic, task.seed, task.scale)
        names = dict.fromkeys([*OPPONENTS, task.policy])
        at = {name: rig.run(name) for name in names}
        harder = {name: rig.run(name, HARDER) for name in dict.fromkeys(["pool", task.policy])} if point.steep else {}
        found.append(
            Found(
                point=point,
                seed=task.seed,
                policy=task.policy,
                load=rig.load,
                capacity=rig.capacity,
                at=at,
                harder=harder,
            )
        )
    return found


def tasks(points: Iterable[Point], seeds: Iterable[int], traces: Path, policy: str, scale: Scale) -> list[Task]:
    """The longest first. Agents' points are spread by capacity: they are most of the work."""
    groups: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        groups.setdefault((point.trace, point.capacity if point.trace == "agent" else ""), []).append(point)
    return [Task(traces, tuple(group), seed, policy, scale) for group in groups.values() for seed in seeds]


def run(work: Sequence[Task]) -> list[Found]:
    found: list[Found] = []
    with ProcessPoolExecutor(max_workers=min(len(work), os.cpu_count() or 1)) as workers:
        for done in as_completed([workers.submit(perform, task) for task in work]):
            for one in done.result():
                console.print(_line(one))
                found.append(one)
    order = {point: number for number, point in enumerate(dict.fromkeys(p for task in work for p in task.points))}
    return sorted(found, key=lambda one: (order[one.point], one.seed))


def _line(one: Found) -> str:
    point = one.point
    return (
        f"{point.trace:12} {point.capacity:>4} {point.load:8} seed {one.seed}: hit {one.own.hit:.3f}, "
        f"{one.hit('pool'):.3f} of the pool's and {one.hit('dcost4'):.3f} of dcost4's; "
        f"p99 {one.own.p99:.2f} s, {one.p99('pool'):.2f} and {one.p99('dcost4'):.2f}"
    )


def report(found: Sequence[Found], seconds: float) -> dict[str, Any]:
    verdicts, reached = judge(found), goals(found)
    missed = {verdict.point: verdict.missed for verdict in verdicts}
    rows = [
        {
            "trace": one.point.trace,
            "load": one.point.load,
            "capacity": one.point.capacity,
            "hit_ratio": one.hit("pool"),
            "p99_rr": one.p99("rr"),
            "p99_pool": one.p99("pool"),
            "skew": one.own.skew,
            "seed": one.seed,
            "ok": not missed[one.point],
            "hit_of": {name: one.hit(name) for name in OPPONENTS},
            "p99_of": {name: one.p99(name) for name in OPPONENTS},
            "collapse": one.collapse,
            "load_found": one.load,
            "capacity_tokens": one.capacity,
            "outcomes": one.at,
            "harder": one.harder,
        }
        for one in found
    ]
    held = sum(not verdict.missed for verdict in verdicts)
    met = sum(one.met for one in reached)
    figure = f"{held} of {len(verdicts)} points hold what must hold; {met} of {len(reached)} goals are met"
    misses = [f"{v.point.trace} {v.point.capacity} {v.point.load}: {text}" for v in verdicts for text in v.missed]
    return {
        "ok": bool(rows) and held == len(verdicts),
        "figure": "; ".join([figure, *misses]),
        "rows": rows,
        "verdicts": verdicts,
        "goals": reached,
        "seconds": seconds,
        "machine": machine.describe(),
    }


def show(verdicts: Sequence[Verdict], reached: Sequence[Reached]) -> None:
    must = Table("trace", "capacity", "load", "hit ÷ dcost4", "p99 ÷ dcost4", "hit ÷ tree", "collapse", "holds")
    for v in verdicts:
        values = (f"{v.hit_of_dcost4:.3f}", f"{v.p99_of_dcost4:.2f}", f"{v.hit_of_tree:.3f}", f"{v.collapse:+.3f}")
        must.add_row(v.point.trace, v.point.capacity, v.point.load, *values, "no" if v.missed else "yes")
    aim = Table("trace", "capacity", "load", "hit ÷ pool", "p99 ÷ rr", "p99 ÷ pool", "skew", "goal met")
    for r in reached:
        goal = r.goal
        values = (
            f"{r.hit:.3f} (≥ {goal.hit})",
            f"{r.p99_rr:.3f} (≤ {goal.p99_rr})",
            f"{r.p99_pool:.2f} (≤ {goal.p99_pool})",
            f"{r.skew:.2f} (≤ {goal.skew})",
        )
        aim.add_row(goal.trace, r.capacity, goal.load, *values, "yes" if r.met else "no")
    console.print(must, aim)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.routing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder of traces")
    parser.add_argument("--json", type=Path, required=True, help="where the report goes")
    parser.add_argument(
        "--policy", choices=[*POLICIES, *OPPONENTS], default=DEFAULT, help=f"what is judged (default {DEFAULT})"
    )
    parser.add_argument("--quick", action="store_true", help="one seed, fewer points, less of each trace")
    options = parser.parse_args(arguments)
    if not options.traces.is_dir():
        parser.error(f"--traces: {options.traces} is no folder")
    return options


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    points = [p for p in (QUICK_POINTS if options.quick else POINTS) if present(options.traces, p.trace)]
    if not points:
        console.print(f"{options.traces} has none of the folders {', '.join(sorted(set(FOLDERS.values())))}")
        return 2
    began = time.monotonic()
    scale, seeds = (QUICK, QUICK_SEEDS) if options.quick else (Scale(), SEEDS)
    found = run(tasks(points, seeds, options.traces, options.policy, scale))
    written = report(found, time.monotonic() - began)
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1))
    show(written["verdicts"], written["goals"])
    console.print(written["figure"])
    return 0 if written["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
