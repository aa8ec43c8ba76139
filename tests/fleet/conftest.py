from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fake_replicas import FakeLauncher, FakeReplica
from pool_rig import Launch, Rig, until

from stoker.fleet.pool import Pool
from stoker.fleet.router import Router
from stoker.types.wire import Ready


@pytest.fixture
async def launch() -> AsyncIterator[Launch]:
    rigs: list[Rig] = []

    async def start(
        replicas: int = 2, *, zones: tuple[str, ...] = (), recover: float = 5.0, patience: float = 5.0
    ) -> Rig:
        fakes: dict[str, FakeReplica] = {}

        def make(name: str, **callbacks: Any) -> FakeReplica:
            zone = zones[len(fakes) % len(zones)] if zones else ""
            fakes[name] = FakeReplica(name, zone=zone, **callbacks)
            return fakes[name]

        router = Router(clock=lambda: 0.0)  # so that no rate is measured, whatever the machine does
        launcher = FakeLauncher(make)
        pool = Pool("m", launcher, replicas=replicas, recover=recover, patience=patience, router=router)
        rig = Rig(pool, router, fakes, launcher)
        rigs.append(rig)
        await rig.pool.start()
        await until(lambda: all(isinstance(fake.state, Ready) for fake in fakes.values()))
        return rig

    yield start
    for rig in rigs:
        await rig.pool.stop()
        assert rig.idle
