"""The gateway workload, over the real server and the engine that answers at once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from bench import gateway
from bench.adapters.base import Server
from bench.bars import METRICS
from bench.client import Client
from bench.fake_engine import Requests
from bench.workloads import Prompts

HOST = Server(
    "gateway", [sys.executable, "-m", "bench.gateway_host", "{port}"], model="demo", ready_path="/health/ready"
)


def test_the_fake_engine_has_a_token_for_everybody_in_each_step() -> None:
    requests = Requests()
    requests.open = {(b"x", "short"): (0, 1), (b"x", "long"): (0, 3), (b"y", "other"): (0, 2)}
    steps = [requests.step() for _ in range(4)]
    told = [
        [(client, one.id, one.output, one.finish) for client, step in made.items() for one in step.progress]
        for made in steps
    ]
    assert told == [
        [(b"x", "short", 1, "length"), (b"x", "long", 1, None), (b"y", "other", 1, None)],
        [(b"x", "long", 2, None), (b"y", "other", 2, "length")],
        [(b"x", "long", 3, "length")],
        [],
    ]


async def test_measures_what_the_text_side_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SHORT_RUNS": 3, "LONG": 3_000, "LONG_RUNS": 2, "STREAM_TOKENS": 10, "PACE": 0.001}.items():
        monkeypatch.setattr(gateway, name, value)
    found = await gateway.measure(tmp_path)
    assert set(found) == {metric.key for metric in METRICS if metric.workload == "g"}
    assert all(0 <= value < 10_000 for value in found.values())


async def test_the_fake_engine_serves_many_at_once(tmp_path: Path) -> None:
    prompts = Prompts("s")
    async with HOST.session(tmp_path, prompts) as session, Client(session.base, "demo") as client:
        made = await asyncio.gather(*(client.complete(prompt, 50) for prompt in prompts.many("x", 16, 20)))
    assert [timing.output for timing in made] == [50] * 16
