"""A pool over real engine processes with a tiny model: kill -9, SIGSTOP and poison under streaming load."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager

import pytest
import pytest_asyncio

from stoker.config import EngineConfig
from stoker.engine.spec import EngineSpec
from stoker.fleet.launcher import Host, LocalLauncher
from stoker.fleet.member import Member
from stoker.fleet.pool import Pool
from stoker.fleet.route import Route
from stoker.fleet.router import Router
from stoker.fleet.seat import ENGINE_COMMAND
from stoker.fleet.supervisor import LocalReplica
from stoker.fleet.suspects import CLEARED_TOKENS
from stoker.models.info import read_info
from stoker.models.source import ModelFiles
from stoker.types.errors import StokerError
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, Progress, Ready

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = EngineConfig(device="cpu", dtype="float32", threads=1, kv_memory=4 << 20)
POISON = 399


class Rig:
    def __init__(self, pool: Pool, router: Router, members: dict[str, Member]) -> None:
        self.pool, self.router, self.members = pool, router, members

    @property
    def replicas(self) -> list[LocalReplica]:
        found = [member.replica for member in self.members.values()]
        assert all(isinstance(replica, LocalReplica) for replica in found)
        return found  # pyright: ignore[reportReturnType]

    def signal(self, number: int, what: signal.Signals = signal.SIGKILL) -> int:
        pid = self.replicas[number].pid
        assert pid is not None
        os.kill(pid, what)
        return pid

    @property
    def serving(self) -> bool:
        return all(isinstance(replica.state, Ready) for replica in self.replicas)

    @property
    def loads(self) -> list[int]:
        return [replica.load.inflight for replica in self.router.replicas.values()]


@asynccontextmanager
async def running(files: ModelFiles, count: int, command: Sequence[str] = ENGINE_COMMAND) -> AsyncIterator[Rig]:
    spec = EngineSpec(
        files=files, info=read_info(files), config=CONFIG, endpoint="", chain_key="33" * 32, log_level="error"
    )
    router = Router()
    pool = Pool("tiny", LocalLauncher(Host(count), spec, command=command), replicas=count, router=router)
    rig = Rig(pool, router, pool.members)
    await pool.start()
    try:
        await until(lambda: rig.serving)
        yield rig
    finally:
        pids = [replica.pid for replica in rig.replicas]
        await pool.stop()
        assert not any(alive(pid) for pid in pids if pid is not None)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rig(tiny_llama: ModelFiles) -> AsyncIterator[Rig]:
    async with running(tiny_llama, 3) as rig:
        yield rig


async def until(condition: Callable[[], bool], within: float = 90.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ask(name: str, number: int, *, tokens: int = 300) -> Generate:
    """Every other one with temperature, penalties and a seed; prompts of several pages."""
    draws = {"temperature": 1.0, "seed": number, "presence_penalty": 0.5} if number % 2 else {"temperature": 0.0}
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, **draws)  # pyright: ignore[reportArgumentType]
    return Generate(id=name, prompt_ids=[(number * 37 + i * 11) % 390 for i in range(40)], sampling=sampling)


async def collect(
    pool: Pool, request: Generate, on_token: Callable[[int], None] = lambda _: None
) -> tuple[list[int], Progress]:
    tokens: list[int] = []
    async with aclosing(pool.generate(request, Route(tenant="t"))) as stream:
        async for progress in stream:
            tokens += [token.id for token in progress.tokens]
            on_token(len(tokens))
            if progress.finish:
                return tokens, progress
    raise AssertionError("the stream ended without a finish")


async def test_kill_9_of_every_replica_under_streaming_load(rig: Rig) -> None:
    """Every stream is what it is when nobody is killed, greedy or drawn."""
    count, tokens = 8, 5 * CLEARED_TOKENS
    expected = [await collect(rig.pool, ask(f"quiet{i}", i, tokens=tokens)) for i in range(count)]
    seen = [0] * count

    def watch(stream: int) -> Callable[[int], None]:
        return lambda output: seen.__setitem__(stream, output)

    readers = [
        asyncio.create_task(collect(rig.pool, ask(f"chaos{i}", i, tokens=tokens), watch(i))) for i in range(count)
    ]
    killed = 0
    for victim in range(3):
        # a stream that gets nowhere between two deaths would rightly be a suspect of both
        before = seen[:]
        await until(
            lambda before=before: all(now - then > CLEARED_TOKENS for now, then in zip(seen, before, strict=True))
        )
        if rig.members[f"tiny/{victim}"].flights:
            rig.signal(victim)
            killed += 1
    results = await asyncio.gather(*readers)
    assert killed >= 2
    assert rig.pool.replayed >= killed
    assert rig.pool.repeated_tokens > 0
    for (tokens, last), (quiet, end) in zip(results, expected, strict=True):
        assert tokens == quiet
        assert (last.output, last.finish) == (end.output, end.finish)
    await until(lambda: rig.serving)
    assert rig.loads == [0, 0, 0]
    assert sum(status.restarts for status in rig.pool.replicas().values()) == killed


async def test_a_stopped_engine_is_replaced_and_its_streams_go_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.fleet.silence.HUNG_SECONDS", 1.5)
    monkeypatch.setattr("stoker.fleet.silence.HUNG_STEPS", 0.0)
    await until(lambda: rig.serving)
    expected = [(await collect(rig.pool, ask(f"calm{i}", i)))[0] for i in range(4)]
    started = asyncio.Event()
    readers = [
        asyncio.create_task(collect(rig.pool, ask(f"hung{i}", i), lambda n: started.set() if n > 20 else None))
        for i in range(4)
    ]
    await started.wait()
    victim = next(number for number in range(3) if rig.members[f"tiny/{number}"].flights)
    before = rig.signal(victim, signal.SIGSTOP)
    assert [tokens for tokens, _ in await asyncio.gather(*readers)] == expected
    await until(lambda: rig.serving)
    assert rig.replicas[victim].pid != before
    assert not alive(before)


async def test_a_client_that_leaves_after_a_failover_frees_its_slot(rig: Rig) -> None:
    await until(lambda: rig.serving)
    stream = rig.pool.generate(ask("leaver", 1, tokens=900), Route(tenant="t"))
    for _ in range(20):
        await anext(stream)
    victim = next(number for number in range(3) if rig.members[f"tiny/{number}"].flights)
    rig.signal(victim)
    seen = 0
    while seen < 5:
        seen += len((await anext(stream)).tokens)
    second = next(member for member in rig.members.values() if member.flights)
    before = second.replica.stats
    assert before is not None
    await stream.aclose()
    await until(lambda: (now := second.replica.stats) is not None and now.steps > before.steps and now.running == 0)
    after = second.replica.stats
    assert after is not None
    assert after.decode_tokens - before.decode_tokens < 400, "it computed to the end instead of stopping"
    assert after.blocks_in_use == 0


POISONED = textwrap.dedent(
    f"""
    import os, sys
    from stoker.engine.core import EngineCore
    submit = EngineCore.submit
    def poisoned(self, client, request):
        if {POISON} in request.prompt_ids:
            os._exit(7)
        return submit(self, client, request)
    EngineCore.submit = poisoned
    from stoker.engine.process import main
    sys.exit(main())
    """
)


async def test_a_poisonous_request_is_refused_and_takes_nobody_with_it(tiny_llama: ModelFiles) -> None:
    async with running(tiny_llama, 2, (sys.executable, "-c", POISONED)) as rig:
        expected = (await collect(rig.pool, ask("quiet", 1)))[0]
        bystander = asyncio.create_task(collect(rig.pool, ask("bystander", 1)))
        await asyncio.sleep(0.1)
        poison = Generate(id="poison", prompt_ids=[1, POISON, 2], sampling=SamplingParams(max_tokens=5))
        with pytest.raises(StokerError) as caught:
            await collect(rig.pool, poison)
        assert caught.value.code == "poison_request"
        assert (await bystander)[0] == expected
        await until(lambda: rig.serving)
        ended = sum(status.restarts for status in rig.pool.replicas().values())
        assert ended <= 3, "two, and one more where the bystander saw the same two"
