"""A server of another make as a replica: its streams, its refusals, its death, and what it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest
import pytest_asyncio
from fake_vllm import FakeVLLM, token_after

from stoker.config import ConfigError, ServerConfig
from stoker.fleet import external
from stoker.fleet.backend import Down
from stoker.fleet.completions import body_of
from stoker.fleet.external import ExternalLauncher
from stoker.fleet.pool import Pool
from stoker.fleet.route import Route
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, Progress, Ready, SampledToken

EOS = 2
PROMPT = list(range(5, 45))


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[list[FakeVLLM]]:
    made = [FakeVLLM(), FakeVLLM()]
    for server in made:
        await server.start()
    yield made
    for server in made:
        await server.stop()


@asynccontextmanager
async def pool_of(*servers: FakeVLLM, concurrency: int = 8) -> AsyncIterator[Pool]:
    configs = [ServerConfig(url=server.url, model="m", concurrency=concurrency) for server in servers]
    pool = Pool("x", ExternalLauncher(configs, context=4096, eos_ids=(EOS,)), replicas=len(configs), recover=5.0)
    await pool.start()
    try:
        async with asyncio.timeout(20):
            await until(lambda: sum(isinstance(m.replica.state, Ready) for m in pool.members.values()) == len(configs))
        yield pool
    finally:
        await pool.stop()


async def until(condition: object) -> None:
    assert callable(condition)
    while not condition():  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.01)


def request(name: str, tokens: int = 20, **other: object) -> Generate:
    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, stop_ids=(EOS,), **other)  # type: ignore[arg-type]
    return Generate(id=name, prompt_ids=PROMPT, sampling=sampling)


async def collect(pool: Pool, what: Generate) -> tuple[list[SampledToken], Progress]:
    tokens: list[SampledToken] = []
    async with aclosing(pool.generate(what, Route(tenant="t"))) as steps:
        async for progress in steps:
            tokens += progress.tokens
            if progress.finish is not None:
                return tokens, progress
    raise AssertionError("no end")


def written(count: int) -> list[int]:
    return [token_after(PROMPT, len(PROMPT) + at) for at in range(count)]


async def test_ids_in_ids_out(servers: list[FakeVLLM]) -> None:
    servers[0].cached = 32
    async with pool_of(servers[0]) as pool:
        tokens, end = await collect(pool, request("a"))
        assert [token.id for token in tokens] == written(20)
        assert (end.finish, end.output, end.cached) == ("length", 20, 32)
        assert servers[0].asked[0]["prompt"] == PROMPT


async def test_end_tokens_are_counted_and_left_out(servers: list[FakeVLLM]) -> None:
    servers[0].eos = len(PROMPT) + 5
    async with pool_of(servers[0]) as pool:
        tokens, end = await collect(pool, request("a"))
        assert [token.id for token in tokens] == written(5)
        assert (end.finish, end.output) == ("stop", 6)


async def test_logprobs(servers: list[FakeVLLM]) -> None:
    async with pool_of(servers[0]) as pool:
        tokens, _ = await collect(pool, request("a", tokens=1, logprobs=2))
        assert tokens == [SampledToken(written(1)[0], -0.5, [(written(1)[0], -0.5), (3, -1.5)])]


async def test_a_stream_that_breaks_goes_on_elsewhere(servers: list[FakeVLLM]) -> None:
    async with pool_of(*servers) as pool:
        gate = asyncio.Event()
        servers[0].pace = servers[1].pace = gate.wait
        task = asyncio.ensure_future(collect(pool, request("a")))
        await until(lambda: any(server.asked for server in servers))
        next(server for server in servers if server.asked).cut = 7
        gate.set()
        tokens, end = await task
        assert [token.id for token in tokens] == written(20)
        assert (end.finish, end.output) == ("length", 20)
        assert sorted(len(server.asked) for server in servers) == [1, 1]


async def test_who_leaves_is_gone_there_too(servers: list[FakeVLLM]) -> None:
    """Also before the first byte."""
    for tokens_first in (0, 3):
        gate = asyncio.Event()
        served = 0

        async def pace(first: int = tokens_first, gate: asyncio.Event = gate) -> None:
            nonlocal served
            served += 1
            if served > first:
                await gate.wait()

        servers[0].pace = pace
        async with pool_of(servers[0]) as pool:
            task = asyncio.ensure_future(collect(pool, request("a")))
            await until(lambda: servers[0].open == 1 and served > tokens_first)  # noqa: B023
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            gate.set()
            await until(lambda: servers[0].open == 0)


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [(400, ErrorKind.INVALID, "refused_by_server"), (503, ErrorKind.CAPACITY, "engine_full")],
)
async def test_refusals(servers: list[FakeVLLM], status: int, kind: ErrorKind, code: str) -> None:
    servers[0].refuse = (status, "no, because")
    async with pool_of(servers[0]) as pool:
        with pytest.raises(StokerError) as caught:
            await collect(pool, request("a"))
        assert (caught.value.kind, caught.value.code) == (kind, code)
        assert "no, because" in caught.value.message


async def test_more_than_it_may_get(servers: list[FakeVLLM]) -> None:
    gate = asyncio.Event()
    servers[0].pace = gate.wait
    async with pool_of(servers[0], concurrency=1) as pool:
        first = asyncio.ensure_future(collect(pool, request("a")))
        await until(lambda: servers[0].open == 1)
        with pytest.raises(StokerError) as caught:
            await collect(pool, request("b"))
        assert caught.value.kind is ErrorKind.CAPACITY
        gate.set()
        assert (await first)[1].finish == "length"


@pytest.mark.parametrize("garbage", [b"data: {\n\n", b"data: []\n\n", b'data: {"choices": 7}\n\n', b"data: [DONE]\n\n"])
async def test_nonsense_is_a_lost_server(servers: list[FakeVLLM], garbage: bytes) -> None:
    async with pool_of(*servers) as pool:
        gate = asyncio.Event()
        servers[0].pace = servers[1].pace = gate.wait
        task = asyncio.ensure_future(collect(pool, request("a")))
        await until(lambda: any(server.asked for server in servers))
        next(server for server in servers if server.asked).garbage = garbage
        gate.set()
        tokens, _ = await task
        assert [token.id for token in tokens] == written(20)


async def test_health_decides(servers: list[FakeVLLM], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "POLL_SECONDS", 0.01)
    gate = asyncio.Event()
    async with pool_of(*servers) as pool:
        servers[0].pace = servers[1].pace = gate.wait
        task = asyncio.ensure_future(collect(pool, request("a")))
        await until(lambda: any(server.open for server in servers))
        gone = next(server for server in servers if server.open)
        gone.healthy = False
        await until(lambda: any(isinstance(member.replica.state, Down) for member in pool.members.values()))
        gate.set()
        tokens, _ = await task
        assert [token.id for token in tokens] == written(20)
        gone.healthy = True
        await until(lambda: all(isinstance(member.replica.state, Ready) for member in pool.members.values()))


async def test_grammars_are_refused_by_name(servers: list[FakeVLLM]) -> None:
    async with pool_of(servers[0]) as pool:
        with pytest.raises(StokerError, match="cannot be given a grammar"):
            await collect(pool, Generate(id="a", prompt_ids=PROMPT, sampling=SamplingParams(), grammar="start: x"))


def test_what_goes_on_is_part_of_the_prompt() -> None:
    what = Generate(
        id="a",
        prompt_ids=[1, 2],
        output_ids=[3],
        sampling=SamplingParams(max_tokens=5, min_tokens=2, seed=7, logit_bias={9: 1.5}),
    )
    body = body_of(what, "m")
    assert (body["prompt"], body["max_tokens"], body["min_tokens"]) == ([1, 2, 3], 4, 1)
    assert (body["seed"], body["logit_bias"]) == (7, {"9": 1.5})


def test_a_key_that_is_not_there() -> None:
    server = ServerConfig(url="http://127.0.0.1:1", model="m", key_env="STOKER_TEST_NO_SUCH_KEY")
    with pytest.raises(ConfigError, match="STOKER_TEST_NO_SUCH_KEY"):
        ExternalLauncher([server], context=1, eos_ids=())
