"""A real engine process with a tiny model: its life, its death, and what its clients see of both."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from stoker.config import EngineConfig
from stoker.engine.chain import pack
from stoker.engine.spec import EngineSpec
from stoker.fleet.backend import Down, State
from stoker.fleet.supervisor import LocalReplica
from stoker.models.info import read_info
from stoker.models.source import ModelFiles
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, KVNews, KVSnapshot, Progress, Ready

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
CONFIG = EngineConfig(device="cpu", dtype="float32", threads=1, kv_memory=1 << 20)


def spec_for(files: ModelFiles, config: EngineConfig = CONFIG) -> Callable[[str], EngineSpec]:
    info = read_info(files)
    return lambda endpoint: EngineSpec(
        files=files, info=info, config=config, endpoint=endpoint, chain_key="11" * 32, log_level="error"
    )


async def until(condition: Callable[[], bool], within: float = 60.0) -> None:
    end = time.monotonic() + within
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").split()[2] != "Z"
    except OSError:
        return False


@pytest_asyncio.fixture
async def replica(tiny_llama: ModelFiles) -> AsyncIterator[LocalReplica]:
    replica = LocalReplica(spec_for(tiny_llama))
    await replica.start()
    await until(lambda: isinstance(replica.state, Ready))
    yield replica
    pid = replica.pid
    await replica.stop()
    assert pid is None or not alive(pid)


async def collect(replica: LocalReplica, request: Generate) -> tuple[list[int], Progress]:
    tokens: list[int] = []
    async with aclosing(replica.generate(request)) as stream:
        async for progress in stream:
            tokens += [token.id for token in progress.tokens]
            if progress.finish:
                return tokens, progress
    raise AssertionError("the stream ended without a finish")


def request(request_id: str, prompt: list[int], sampling: SamplingParams = GREEDY, domain: str = "") -> Generate:
    return Generate(id=request_id, prompt_ids=prompt, sampling=sampling, domain=domain)


PROMPT = [5 + i * 7 % 250 for i in range(50)]


async def test_the_second_time_comes_from_the_cache(replica: LocalReplica) -> None:
    first, last = await collect(replica, request("a", PROMPT))
    assert (len(first), last.finish, last.cached, last.output) == (8, "length", 0, 8)
    second, last = await collect(replica, request("b", PROMPT))
    assert second == first
    assert last.cached == 48
    third, last = await collect(replica, request("c", PROMPT, domain="other tenant"))
    assert third == first
    assert last.cached == 0


class Mirror:
    """What a router knows of one replica's cache."""

    def __init__(self) -> None:
        self.blocks: set[bytes] = set()
        self.snapshots = 0
        self.last: KVNews | None = None

    def take(self, news: KVNews) -> None:
        if isinstance(news, KVSnapshot):
            self.snapshots += news.first
            self.blocks = (set() if news.first else self.blocks) | set(links(news.blocks))
        else:
            assert self.last is not None
            assert news.seq == self.last.seq + 1
            self.blocks = (self.blocks - set(links(news.removed))) | set(links(news.stored))
        self.last = news


def links(joined: bytes) -> list[bytes]:
    return [joined[at : at + 16] for at in range(0, len(joined), 16)]


async def test_its_cache_is_told_block_by_block_in_every_life(tiny_llama: ModelFiles) -> None:
    mirror, spec = Mirror(), spec_for(tiny_llama)
    scheme = spec("").scheme
    replica = LocalReplica(spec, on_kv=mirror.take)
    await replica.start()
    await until(lambda: mirror.snapshots == 1)
    assert mirror.blocks == set()
    prompt = PROMPT * 3
    named = scheme.extend(b"", scheme.root(domain="t"), pack(prompt))
    asked = msgspec.structs.replace(request("a", prompt, domain="t"), links=named)
    tokens, _ = await collect(replica, asked)
    whole = scheme.extend(b"", scheme.root(domain="t"), pack(prompt + tokens))
    await until(lambda: mirror.blocks == set(scheme.blocks(whole)) != set())
    replica.resubscribe()
    await until(lambda: mirror.snapshots == 2)
    assert mirror.blocks == set(scheme.blocks(whole))
    assert replica.pid
    os.kill(replica.pid, signal.SIGKILL)
    await until(lambda: mirror.snapshots == 3)
    assert mirror.blocks == set(), "another life begins with an empty cache"
    await collect(replica, asked)
    await until(lambda: mirror.blocks == set(scheme.blocks(whole)))
    await replica.stop()


async def test_leaving_frees_everything(replica: LocalReplica) -> None:
    endless = msgspec.structs.replace(GREEDY, max_tokens=900)
    async with aclosing(replica.generate(request("long", PROMPT, endless))) as stream:
        async for progress in stream:
            assert progress.finish is None
            break
    reader = asyncio.create_task(collect(replica, request("cancelled", PROMPT, endless)))
    await asyncio.sleep(0.05)
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)
    steps = replica.stats.steps if replica.stats else 0
    await until(lambda: replica.stats is not None and replica.stats.running + replica.stats.blocks_in_use == 0, 10.0)
    assert replica.stats is not None
    assert replica.stats.steps < steps + 850, "it computed to the end instead of stopping"
    tokens, _ = await collect(replica, request("after", PROMPT))
    assert len(tokens) == 8


async def test_many_at_once_give_what_each_gives_alone(replica: LocalReplica) -> None:
    prompts = [[(i * 31 + j * 7) % 400 for j in range(3 + i * 5)] for i in range(12)]
    alone = [await collect(replica, request(f"alone{i}", p, domain=f"a{i}")) for i, p in enumerate(prompts)]
    together = await asyncio.gather(
        *(collect(replica, request(f"together{i}", p, domain=f"b{i}")) for i, p in enumerate(prompts))
    )
    assert [tokens for tokens, _ in together] == [tokens for tokens, _ in alone]


async def test_a_prompt_that_cannot_fit_is_refused(replica: LocalReplica) -> None:
    with pytest.raises(StokerError) as caught:
        await collect(replica, request("big", [1] * 5000))
    assert caught.value.kind is ErrorKind.INVALID
    assert caught.value.code == "context_length_exceeded"
    assert "5000" in caught.value.message


async def test_a_crash_is_seen_answered_and_mended(replica: LocalReplica) -> None:
    endless = msgspec.structs.replace(GREEDY, max_tokens=900)
    readers = [asyncio.create_task(collect(replica, request(f"r{i}", PROMPT, endless))) for i in range(3)]
    await until(lambda: replica.stats is not None and replica.stats.running == 3)
    before = replica.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    for reader in readers:
        with pytest.raises(StokerError) as caught:
            await asyncio.wait_for(reader, 5.0)
        assert (caught.value.kind, caught.value.code) == (ErrorKind.UNAVAILABLE, "engine_crashed")
    with pytest.raises(StokerError) as caught:
        await collect(replica, request("during", PROMPT))
    assert caught.value.kind is ErrorKind.UNAVAILABLE
    assert caught.value.retry_after is not None
    await until(lambda: isinstance(replica.state, Ready))
    assert replica.pid != before
    tokens, _ = await collect(replica, request("after", PROMPT))
    assert len(tokens) == 8


async def test_a_model_that_cannot_load_is_not_tried_again(tiny_llama: ModelFiles, tmp_path: Path) -> None:
    states: list[State] = []
    spec = spec_for(tiny_llama)

    def empty_folder(endpoint: str) -> EngineSpec:
        files = ModelFiles(name="empty", root=str(tmp_path), gguf=None)
        return msgspec.structs.replace(spec(endpoint), files=files)

    replica = LocalReplica(empty_folder, on_state=states.append)
    await replica.start()
    await until(lambda: isinstance(replica.state, Down))
    assert isinstance(replica.state, Down)
    assert replica.state.final
    assert str(tmp_path) in replica.state.reason
    await replica.stop()


async def test_stop_is_quick_even_in_the_middle_of_work(tiny_llama: ModelFiles) -> None:
    replica = LocalReplica(spec_for(tiny_llama))
    await replica.start()
    await until(lambda: isinstance(replica.state, Ready))
    endless = msgspec.structs.replace(GREEDY, max_tokens=900)
    reader = asyncio.create_task(collect(replica, request("long", PROMPT, endless)))
    await asyncio.sleep(0.1)
    pid, began = replica.pid, time.monotonic()
    await replica.stop()
    assert time.monotonic() - began < 2.0
    assert pid is not None
    assert not alive(pid)
    with pytest.raises(StokerError):
        await reader


def test_the_engine_ends_with_its_parent(tiny_llama: ModelFiles, tmp_path: Path) -> None:
    """kill -9 of the gateway's process leaves no engine behind."""
    script = textwrap.dedent(
        """
        import asyncio, sys
        import msgspec
        from stoker.engine.spec import EngineSpec
        from stoker.fleet.supervisor import LocalReplica
        from stoker.types.wire import Ready
        spec = msgspec.json.decode(open(sys.argv[1], "rb").read(), type=EngineSpec)
        async def main():
            replica = LocalReplica(lambda endpoint: msgspec.structs.replace(spec, endpoint=endpoint))
            await replica.start()
            while not isinstance(replica.state, Ready):
                await asyncio.sleep(0.01)
            print(replica.pid, flush=True)
            await asyncio.sleep(60)
        asyncio.run(main())
        """
    )
    file = tmp_path / "spec.json"
    file.write_bytes(msgspec.json.encode(spec_for(tiny_llama)("")))
    folder = tmp_path / "run"
    folder.mkdir()
    env = {**os.environ, "TMPDIR": str(folder)}
    with subprocess.Popen([sys.executable, "-c", script, str(file)], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        engine = int(parent.stdout.readline())
        assert alive(engine)
        parent.kill()
    end = time.monotonic() + 10.0
    while alive(engine):
        assert time.monotonic() < end, "the engine outlived its parent"
        time.sleep(0.05)
    assert list(folder.iterdir()) == []
