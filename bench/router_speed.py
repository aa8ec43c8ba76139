"""What one decision of the router costs, and the hashing of a prompt beside it.

    python -m bench.router_speed --json FILE [--quick]

64 replicas with full caches, prompts of 200,000 tokens (3,125 logical blocks) of which each replica holds a part of its
own length: the worst case of the index. A turn adds 2,000 tokens. `ok`: the 99th percentile of `route` is below 1 ms of
processor time. Elapsed times stand beside it: they have the host's other work in them.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bench import machine
from stoker.engine.chain import LOGICAL_BLOCK, PAGE, Chain, ChainRoot
from stoker.fleet.router import ReplicaInfo, Router, RouteRequest
from stoker.types.wire import KVSnapshot

REPLICAS, TOKENS, TURN = 64, 200_000, 2_000
CAPACITY = 700_000
BAR_SECONDS = 0.001


def links(draw: random.Random, count: int) -> list[bytes]:
    return [draw.randbytes(16) for _ in range(count)]


def fleet(draw: random.Random) -> Router:
    """Every cache full with prompts of its own."""
    router = Router()
    for number in range(REPLICAS):
        name = f"model/{number}"
        info = ReplicaInfo(name=name, capacity_tokens=CAPACITY, prefill_rate=12_000.0, step_seconds=0.04)
        router.add(info)
        blocks = links(draw, CAPACITY // LOGICAL_BLOCK)
        router.snapshot(name, KVSnapshot(seq=0, blocks=b"".join(blocks), first=True))
    return router


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"p{share}": ordered[min(len(ordered) * share // 100, len(ordered) - 1)] for share in (50, 90, 99)}


def measure(sessions: int, turns: int) -> dict[str, Any]:
    draw = random.Random(1)
    router = fleet(draw)
    size = TOKENS // LOGICAL_BLOCK
    times: dict[str, list[float]] = {name: [] for name in ("route", "route_cpu", "dispatch", "dispatch_cpu")}
    for session in range(sessions):
        blocks = links(draw, size)
        for replica in router.replicas.values():  # each holds another part of it
            replica.view.begun(replica.view.dispatched(blocks[: draw.randrange(size)], 0.0))
        for turn in range(turns):
            blocks = [*blocks[: size - TURN // LOGICAL_BLOCK], *links(draw, TURN // LOGICAL_BLOCK)]
            name = f"{session}.{turn}"
            request = RouteRequest(id=name, tenant="tenant", session=str(session), blocks=blocks, tokens=TOKENS)
            decision, wall, cpu = timed(lambda request=request: router.route(request))
            times["route"].append(wall)
            times["route_cpu"].append(cpu)
            _, wall, cpu = timed(lambda request=request, decision=decision: router.dispatch(request, decision))
            times["dispatch"].append(wall)
            times["dispatch_cpu"].append(cpu)
            if turn % 2:
                router.begun(name, decision.matched)
                router.finished(name)
    return {name: quantiles(values) for name, values in times.items()}


def hashing() -> dict[str, float]:
    """Seconds for a whole prompt, and for what a turn adds to a session whose chain is kept."""
    draw = random.Random(2)
    ids = [draw.randrange(150_000) for _ in range(TOKENS + TURN)]
    chain = Chain(ChainRoot(fingerprint="model"), b"key", PAGE)
    _, whole, _ = timed(lambda: chain.extend(ids[:TOKENS]))
    _, turn, _ = timed(lambda: chain.extend(ids))
    return {"whole_prompt": whole, "one_turn": turn}


def report(quick: bool) -> dict[str, Any]:
    found = measure(4 if quick else 16, 25)
    cost = hashing()
    ok = found["route_cpu"]["p99"] < BAR_SECONDS
    figure = (
        f"route p50 {found['route_cpu']['p50'] * 1000:.2f} ms, p99 {found['route_cpu']['p99'] * 1000:.2f} ms of "
        f"processor time (bar {BAR_SECONDS * 1000:g}; elapsed p99 {found['route']['p99'] * 1000:.2f}); "
        f"dispatch p99 {found['dispatch_cpu']['p99'] * 1000:.2f} ms; hashing "
        f"{cost['whole_prompt'] * 1000:.0f} ms for {TOKENS} tokens, {cost['one_turn'] * 1000:.1f} ms for a turn"
    )
    sizes = {"replicas": REPLICAS, "tokens": TOKENS, "turn": TURN, "capacity": CAPACITY}
    return {"ok": ok, "figure": figure, "seconds": found, "hashing": cost, **sizes, "machine": machine.describe()}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.router_speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, required=True, help="where the report goes")
    parser.add_argument("--quick", action="store_true", help="fewer decisions")
    options = parser.parse_args(arguments)
    written = report(options.quick)
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(written), indent=1))
    print(written["figure"])
    return 0 if written["ok"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
