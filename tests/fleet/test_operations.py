"""Drain, restart, replace and resize under load: nobody's request fails, whatever an operator does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from fake_replicas import FakeLauncher, FakeReplica
from pool_rig import Launch, Rig, ask, collect, until, whole

from stoker.fleet.backend import Down
from stoker.fleet.route import Route
from stoker.types.errors import StokerError
from stoker.types.wire import Ready


@asynccontextmanager
async def load(rig: Rig, *, streams: int = 8, tokens: int = 40) -> AsyncIterator[list[int]]:
    """Sessions that ask again and again; every answer is checked. Yields the counts of answers by session."""
    counts = [0] * streams
    stop = asyncio.Event()

    async def session(number: int) -> None:
        while not stop.is_set():
            request = ask(f"s{number}t{counts[number]}", tokens=tokens, prompt=5 + number)
            route = Route(tenant="t", session=f"s{number}", zone=None)
            tokens_there, _ = await collect(rig, request, route)
            assert tokens_there == whole(request)
            counts[number] += 1

    sessions = [asyncio.create_task(session(number)) for number in range(streams)]
    await until(lambda: all(counts))
    yield counts
    before = list(counts)
    await until(lambda: all(now > then for now, then in zip(counts, before, strict=True)))
    stop.set()
    await asyncio.gather(*sessions)


def status(rig: Rig) -> dict[str, str]:
    return {name: replica.status for name, replica in rig.pool.replicas().items()}


async def test_drain_and_back_under_load(launch: Launch) -> None:
    rig = await launch(3)
    said: list[str] = []
    async with load(rig):
        await rig.pool.operations.drain("m/1", said.append)
        assert status(rig) == {"m/0": "ready", "m/1": "drained", "m/2": "ready"}
        asked = len(rig[1].asked)
        await asyncio.sleep(0.01)
        assert len(rig[1].asked) == asked
        await rig.pool.operations.drain("m/1", said.append)
        await rig.pool.operations.undo("m/1", said.append)
        assert status(rig)["m/1"] == "ready"
    assert said[-1] == "m/1 is ready"
    assert rig.pool.replayed == 0, "it had the time to finish"
    assert rig.pool.moved > 0, "its sessions went elsewhere"
    assert rig.pool.moved_tokens >= 5 * rig.pool.moved


async def test_what_takes_too_long_goes_on_elsewhere(launch: Launch) -> None:
    rig = await launch(2, patience=0.02)
    requests = [ask(f"long{number}", tokens=2000, prompt=5 + number) for number in range(6)]
    readers = [asyncio.create_task(collect(rig, request)) for request in requests]
    await asyncio.sleep(0.01)
    running = len(rig[0].open)
    assert running
    await rig.pool.operations.drain("m/0", lambda _: None)
    assert status(rig)["m/0"] == "drained"
    for request, reader in zip(requests, readers, strict=True):
        assert (await reader)[0] == whole(request)
    assert rig.pool.replayed == running
    assert rig.pool.repeated_tokens > 0


async def test_the_last_replica_of_a_zone_is_not_drained(launch: Launch) -> None:
    rig = await launch(3, zones=("eu", "us", "us"))
    for name in ("m/0", "m/9"):
        with pytest.raises(StokerError) as caught:
            await rig.pool.operations.drain(name, lambda _: None)
        assert caught.value.code == ("last_replica" if name == "m/0" else "unknown_replica")
    await rig.pool.operations.drain("m/1", lambda _: None)
    with pytest.raises(StokerError, match="only replica"):
        await rig.pool.operations.drain("m/2", lambda _: None)
    assert status(rig) == {"m/0": "ready", "m/1": "drained", "m/2": "ready"}


async def test_a_drain_that_is_taken_back_while_it_waits(launch: Launch) -> None:
    rig = await launch(2)
    rig[0].running.clear()
    rig[1].running.clear()
    readers = [asyncio.create_task(collect(rig, ask(f"r{number}", prompt=number + 1))) for number in range(4)]
    await until(lambda: len(rig[0].open) > 0)
    draining = asyncio.create_task(rig.pool.operations.drain("m/0", lambda _: None))
    await asyncio.sleep(0.01)
    assert status(rig)["m/0"] == "draining"
    await rig.pool.operations.undo("m/0", lambda _: None)
    await draining
    assert status(rig)["m/0"] == "ready"
    rig[0].running.set()
    rig[1].running.set()
    await asyncio.gather(*readers)


@pytest.mark.parametrize("replicas", [1, 2, 4])
async def test_a_rolling_restart_under_load(launch: Launch, replicas: int) -> None:
    rig = await launch(replicas)
    before = dict(rig.fakes)
    async with load(rig):
        await rig.pool.operations.restart(None, lambda _: None)
        assert len(rig.pool.members) == replicas
        assert set(status(rig).values()) == {"ready"}
    now = {member.replica for member in rig.pool.members.values()}
    assert not now & set(before.values()), "every engine is a new one"
    assert all(isinstance(old.state, Down) for old in before.values())
    assert len(rig.launcher.forgotten) == replicas, "those that were replaced"


async def test_a_restart_that_fails_stops_there(launch: Launch) -> None:
    rig = await launch(3)

    class Broken(FakeReplica):
        async def start(self) -> None:
            self.be(Down(reason="out of memory; restarting"))

    rig.pool.members["m/0"].launcher._make = Broken
    async with load(rig):
        with pytest.raises(StokerError, match="m/0 does not start: out of memory"):
            await rig.pool.operations.restart(None, lambda _: None)
        assert status(rig) == {"m/1": "ready", "m/2": "ready", "m/0": "down"}


async def test_replacing_all_by_others_under_load(launch: Launch) -> None:
    """As an upgrade of settings does. Drained ones do not come back."""
    rig = await launch(3)
    made: list[FakeReplica] = []

    def make(name: str, **callbacks: Any) -> FakeReplica:
        made.append(FakeReplica(name, slots=9, **callbacks))
        rig.fakes[f"new {name}"] = made[-1]
        return made[-1]

    async with load(rig):
        await rig.pool.operations.drain("m/2", lambda _: None)
        await rig.pool.operations.replace(FakeLauncher(make), lambda _: None)
        assert {member.replica for member in rig.pool.members.values()} == set(made)
        assert {replica.info.slots for replica in rig.router.replicas.values()} == {9}
        await rig.pool.operations.resize(3, lambda _: None)
        assert len(made) == 3


async def test_more_and_fewer_under_load(launch: Launch) -> None:
    rig = await launch(1)
    async with load(rig):
        await rig.pool.operations.resize(4, lambda _: None)
        assert list(status(rig)) == ["m/0", "m/1", "m/2", "m/3"]
        assert set(status(rig).values()) == {"ready"}
        await rig.pool.operations.resize(2, lambda _: None)
        assert list(status(rig)) == ["m/0", "m/1"]
        await rig.pool.operations.resize(3, lambda _: None)
    assert all(len(rig[number].asked) > 0 for number in range(3))
    assert isinstance(rig.pool.state, Ready)


async def test_what_cannot_be_doubled_is_not_restarted_while_it_is_alone(launch: Launch) -> None:
    """As a server of another make: there is no second one to start first."""
    rig = await launch(2)
    rig.launcher.limit = 2
    async with load(rig):
        await rig.pool.operations.restart(None, lambda _: None)
        with pytest.raises(StokerError, match="can have 2 replicas"):
            await rig.pool.operations.resize(3, lambda _: None)
        await rig.pool.operations.drain("m/0", lambda _: None)
        with pytest.raises(StokerError, match="none to take its place"):
            await rig.pool.operations.restart("m/1", lambda _: None)
    assert status(rig) == {"m/0": "drained", "m/1": "ready"}
