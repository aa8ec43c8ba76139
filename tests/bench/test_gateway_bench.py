"""The gateway workload, over the real server and the engine that answers at once."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from bench import gateway
from bench.adapters.base import Server
from bench.client import Client
from bench.fake_engine import answers
from bench.workloads import Prompts
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate

HOST = Server(
    "gateway", [sys.executable, "-m", "bench.gateway_host", "{port}"], model="demo", ready_path="/health/ready"
)


def test_the_fake_engine_makes_one_step_for_each_token() -> None:
    steps = answers(Generate(id="r", prompt_ids=[1], sampling=SamplingParams(max_tokens=3)))
    progress = [step.progress[0] for step in steps]
    assert [(one.id, one.output, one.finish) for one in progress] == [
        ("r", 1, None),
        ("r", 2, None),
        ("r", 3, "length"),
    ]


async def test_measures_what_the_text_side_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SHORT_RUNS": 3, "LONG": 3_000, "LONG_RUNS": 2}.items():
        monkeypatch.setattr(gateway, name, value)
    found = await gateway.measure(tmp_path)
    assert set(found) == {"gateway_1k_ms", "gateway_100k_ms", "gateway_token_us"}
    assert all(0 < value < 10_000 for value in found.values())


async def test_the_fake_engine_serves_many_at_once(tmp_path: Path) -> None:
    prompts = Prompts("s")
    async with HOST.session(tmp_path, prompts) as session, Client(session.base, "demo") as client:
        made = await asyncio.gather(*(client.complete(prompt, 50) for prompt in prompts.many("x", 16, 20)))
    assert [timing.output for timing in made] == [50] * 16
