"""Engines on a real Ray cluster of three nodes on this host: placed, lost with their node, replaced elsewhere."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from stoker.config import ConfigError, EngineConfig
from stoker.engine.client import EngineClient
from stoker.engine.curve import curve_pair
from stoker.engine.spec import EngineSpec
from stoker.fleet.backend import Starting
from stoker.fleet.pool import Pool
from stoker.fleet.ray_launcher import RayLauncher, RaySeat, connect, disconnect
from stoker.fleet.route import Route
from stoker.models.info import read_info
from stoker.models.source import ModelFiles
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, Ready

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.asyncio(loop_scope="module"),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without room for engines, and two nodes with room for one each."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.add_node(num_cpus=1)
    connect(made.address)
    yield made
    disconnect()
    made.shutdown()


def spec_for(files: ModelFiles) -> EngineSpec:
    return EngineSpec(
        files=files,
        info=read_info(files),
        config=EngineConfig(device="cpu", dtype="float32", threads=1, kv_memory=4 << 20),
        endpoint="",
        chain_key="33" * 32,
        log_level="error",
    )


@asynccontextmanager
async def running(files: ModelFiles, *, cpus: int = 1) -> AsyncIterator[Pool]:
    pool = Pool("tiny", RayLauncher(spec_for(files), cpus=cpus, gpus=0), replicas=1, recover=120.0)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


async def until(condition: Callable[[], bool], within: float = 120.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.02)


async def collect(pool: Pool, name: str, tokens: int, *, midway: Callable[[], None] = lambda: None) -> list[int]:
    sampling = SamplingParams(temperature=1.0, seed=7, max_tokens=tokens, ignore_eos=True)
    request = Generate(id=name, prompt_ids=list(range(40)), sampling=sampling)
    found: list[int] = []
    async with aclosing(pool.generate(request, Route(tenant="t"))) as steps:
        async for progress in steps:
            found += [token.id for token in progress.tokens]
            if len(found) == tokens // 2:
                midway()
    return found


def engines() -> set[int]:
    """Engines whose parents are Ray's actors."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if b"stoker.engine" in path.read_bytes() and b"EngineHost" in _parent(path).read_bytes():
                found.add(int(path.parent.name))
    return found


def _parent(path: Path) -> Path:
    parent = (path.parent / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[1]
    return Path(f"/proc/{parent}/cmdline")


async def test_no_cluster() -> None:
    with pytest.raises(ConfigError, match="no Ray cluster answers at 'nonsense'"):
        await asyncio.to_thread(connect, "nonsense")


async def test_a_node_is_lost_midway(cluster: Any, tiny_llama: ModelFiles) -> None:
    """The stream pauses, the engine starts on the other node, and the output is what it would have been."""
    import ray

    async with running(tiny_llama) as pool:
        await until(lambda: isinstance(pool.state, Ready))
        whole = await collect(pool, "undisturbed", 200)
        (engine,) = engines()

        def lose() -> None:
            (used,) = [
                node
                for node in cluster.list_all_nodes()
                if node.node_id in {placed["node_id"] for placed in _bundles() if placed["state"] == "CREATED"}
            ]
            cluster.remove_node(used)

        assert await collect(pool, "disturbed", 200, midway=lose) == whole
        (member,) = pool.replicas().values()
        assert member.restarts >= 1
        assert engine not in engines()
    await until(lambda: not engines())
    await until(lambda: ray.available_resources().get("CPU") == ray.cluster_resources()["CPU"] == 1)


def _bundles() -> list[dict[str, Any]]:
    from ray.util import placement_group_table

    table = placement_group_table()
    return [
        {"state": group["state"], "node_id": node}
        for group in table.values()
        for node in group["bundles_to_node_id"].values()
    ]


async def test_a_cluster_without_room(cluster: Any, tiny_llama: ModelFiles) -> None:
    """It waits for a node, and can be stopped meanwhile."""
    async with running(tiny_llama, cpus=64) as pool:
        await asyncio.sleep(0.5)
        assert isinstance(pool.state, Starting)
    assert all(placed["state"] == "REMOVED" for placed in _bundles())


async def test_strangers_are_not_let_in(cluster: Any, tiny_llama: ModelFiles) -> None:
    """Whoever knows the address and the engine's public key, but is not the client it was started for."""
    seat = RaySeat("tiny", {"CPU": 1})
    address = await seat.open()
    spec = spec_for(tiny_llama)
    spec = type(spec)(
        **{name: getattr(spec, name) for name in spec.__struct_fields__}
        | {"endpoint": address.endpoint, "curve": address.engine}
    )
    life = asyncio.ensure_future(seat.run(spec))
    ready: list[Any] = []
    assert address.client
    stranger = curve_pair()[1]
    stranger = type(stranger)(secret=stranger.secret, public=stranger.public, peer=address.client.peer)
    others = [
        EngineClient(address.endpoint, ready.append, curve=stranger),
        EngineClient(address.endpoint, ready.append),
    ]
    mine: list[Any] = []
    client = EngineClient(address.endpoint, mine.append, curve=address.client)
    try:
        await until(lambda: any(isinstance(status, Ready) for status in mine))
        assert ready == []
    finally:
        for each in (client, *others):
            await each.close()
        seat.kill()
        assert await life
        await seat.close()
