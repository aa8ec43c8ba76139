"""What a pool makes of replicas that die, refuse, hang and are poisoned; its clients shall not notice."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

import pytest
from fake_replicas import FakeLauncher, FakeReplica
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pool_rig import Launch, ask, collect, refusal, until, whole

from stoker.fleet.backend import Down, Starting
from stoker.fleet.pool import Pool
from stoker.fleet.route import Route
from stoker.fleet.suspects import MOST_DEATHS
from stoker.obs.traces import Traces
from stoker.types.errors import ErrorKind, LostError, StokerError
from stoker.types.sampling import SamplingParams
from stoker.types.wire import EngineStats, Generate, Ready


async def test_a_stream_goes_on_where_its_engine_died(launch: Launch) -> None:
    rig = await launch(2)
    request = ask(tokens=20)
    for fake in rig.fakes.values():
        fake.deadly = lambda request, output: output == 7 and not request.output_ids
    tokens, last = await collect(rig, request)
    assert tokens == whole(request)
    assert (last.output, last.finish) == (20, "length")
    resumed = [asked for fake in rig.fakes.values() for asked in fake.asked if asked.output_ids]
    assert [asked.output_ids for asked in resumed] == [whole(request)[:7]]
    assert rig.pool.replayed == 1
    assert rig.pool.repeated_tokens == len(request.prompt_ids) + 7
    assert rig.router.replicas.keys() == {"m/0", "m/1"}


async def test_the_seed_is_the_same_wherever_it_goes_on(launch: Launch) -> None:
    """Also where the client gave none: one engine's random numbers continue the other's."""
    rig = await launch(2)
    for fake in rig.fakes.values():
        fake.deadly = lambda request, output: output == 3 and not request.output_ids
    await collect(rig, ask("drawn"))
    await collect(rig, ask("given", seed=5))
    seeds = {name: set[int | None]() for name in ("drawn", "given")}
    for fake in rig.fakes.values():
        for asked in fake.asked:
            seeds[asked.id].add(asked.sampling.seed)
    assert seeds["given"] == {5}
    assert len(seeds["drawn"]) == 1
    assert None not in seeds["drawn"]


async def test_every_stream_survives_replicas_that_die_again_and_again(launch: Launch) -> None:
    rig = await launch(4)
    requests = [ask(f"r{i}", tokens=150, prompt=5 + i) for i in range(24)]
    readers = [asyncio.create_task(collect(rig, request)) for request in requests]
    for turn in range(6):
        await asyncio.sleep(0.01)
        rig[turn % 4].die()
    results = await asyncio.gather(*readers, return_exceptions=True)
    for request, result in zip(requests, results, strict=True):
        assert not isinstance(result, BaseException), result
        assert result[0] == whole(request)
    assert rig.idle


async def test_a_lonely_replica_is_waited_for(launch: Launch) -> None:
    rig = await launch(1)
    rig[0].deadly = lambda request, output: output == 4 and not request.output_ids
    request = ask()
    assert (await collect(rig, request))[0] == whole(request)
    assert rig[0].restarts == 1


async def test_it_is_not_waited_for_longer_than_the_bound(launch: Launch) -> None:
    rig = await launch(1, recover=0.05)
    rig[0].heal = False
    rig[0].deadly = lambda request, output: output == 4
    error = await refusal(rig, ask())
    assert (error.kind, error.code) == (ErrorKind.UNAVAILABLE, "engine_down")
    assert error.retry_after is not None
    error = await refusal(rig, ask("new"))
    assert error.code == "engine_down", "what has lost nothing does not wait at all"


async def test_a_poisonous_request_is_refused_after_two_replicas(launch: Launch) -> None:
    rig = await launch(3)
    for fake in rig.fakes.values():
        fake.deadly = lambda request, output: output == 2
    error = await refusal(rig, ask())
    assert (error.kind, error.code) == (ErrorKind.INVALID, "poison_request")
    assert sum(fake.restarts for fake in rig.fakes.values()) == 2
    for fake in rig.fakes.values():
        fake.deadly = lambda request, output: False
    assert (await collect(rig, ask()))[0] == whole(ask()), "and the others go on"


async def test_a_poisonous_request_takes_nobody_with_it(launch: Launch) -> None:
    """Everybody who runs beside it loses the same engines, and none of them is refused for it."""
    rig = await launch(2)
    for fake in rig.fakes.values():
        fake.deadly = lambda request, output: request.id == "poison" and output == 1
    innocents = [ask(f"r{i}", tokens=300, prompt=5 + i) for i in range(10)]
    readers = [asyncio.create_task(collect(rig, request)) for request in innocents]
    await asyncio.sleep(0.005)
    error = await refusal(rig, ask("poison"))
    assert error.code == "poison_request"
    assert sum(fake.restarts for fake in rig.fakes.values()) <= 3
    for request, reader in zip(innocents, readers, strict=True):
        assert (await reader)[0] == whole(request)


async def test_a_request_is_not_tried_for_ever(launch: Launch) -> None:
    """One that gets on between the deaths, so that nothing proves it guilty."""
    rig = await launch(2)
    for fake in rig.fakes.values():
        fake.deadly = lambda request, output: output > len(request.output_ids) + 100
    error = await refusal(rig, ask(tokens=2000))
    assert error.code == "poison_request"
    assert sum(fake.restarts for fake in rig.fakes.values()) == MOST_DEATHS


async def test_a_client_that_leaves_in_the_middle_of_a_failover(launch: Launch) -> None:
    rig = await launch(1)
    rig[0].heal = False
    stream = rig.pool.generate(ask(tokens=1000), Route(tenant="t"))
    await anext(stream)
    rig[0].die()
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await stream.aclose()
    rig[0].be(Ready(context=4096, kv_tokens=1, block_size=16, dtype="", device="", load_seconds=0.0))
    await asyncio.sleep(0.01)
    assert len(rig[0].asked) == 1, "it does not come back for nobody"
    assert rig.idle


async def test_leaving_aborts_on_the_replica_that_goes_on(launch: Launch) -> None:
    rig = await launch(2)
    stream = rig.pool.generate(ask(tokens=1000), Route(tenant="t"))
    for _ in range(5):
        await anext(stream)
    first = next(fake for fake in rig.fakes.values() if fake.open)
    first.heal = False
    first.die()
    for _ in range(5):
        await anext(stream)
    await stream.aclose()
    second = next(fake for fake in rig.fakes.values() if fake is not first)
    assert second.aborted == ["r"]
    assert rig.idle


async def test_a_replica_that_refuses_is_passed_over(launch: Launch) -> None:
    rig = await launch(3)
    full = StokerError(ErrorKind.CAPACITY, "queue_full", "full", retry_after=1.0)
    rig[0].refuse = rig[1].refuse = full
    for number in range(6):
        assert (await collect(rig, ask(f"r{number}")))[0] == whole(ask())
    assert len(rig[2].asked) == 6
    rig[2].refuse = full
    assert (await refusal(rig, ask())).code == "queue_full"
    wrong = StokerError(ErrorKind.INVALID, "context_length_exceeded", "too long")
    rig[0].refuse = rig[1].refuse = rig[2].refuse = wrong
    assert (await refusal(rig, ask())).code == "context_length_exceeded"


async def test_a_request_never_leaves_its_zone(launch: Launch) -> None:
    rig = await launch(3, zones=("eu", "us", "us"), recover=0.2)
    pinned = Route(tenant="t", zone="eu")
    assert (await collect(rig, ask(), pinned))[0] == whole(ask())
    assert [len(fake.asked) for fake in rig.fakes.values()] == [1, 0, 0]
    rig[0].deadly = lambda request, output: output == 3 and not request.output_ids
    assert (await collect(rig, ask(), pinned))[0] == whole(ask()), "it waits for its own"
    rig[0].heal = False
    rig[0].deadly = lambda request, output: output == 3
    error = await refusal(rig, ask(), pinned)
    assert (error.kind, error.code) == (ErrorKind.UNAVAILABLE, "zone_unavailable")
    assert [len(fake.asked) for fake in rig.fakes.values()][1:] == [0, 0]
    error = await refusal(rig, ask(), Route(tenant="t", zone="mars"))
    assert (error.kind, error.code) == (ErrorKind.INVALID, "zone_not_served")


async def test_sessions_stay_together(launch: Launch) -> None:
    rig = await launch(4)
    for turn in range(5):
        for session in "abcd":
            blocks = [f"{session}{i}".encode().ljust(16) for i in range(turn + 1)]
            route = Route(tenant="t", session=session, blocks=blocks)
            await collect(rig, ask(f"{session}{turn}", prompt=64 * (turn + 1) + 1), route)
    for session in "abcd":
        homes = {fake.name for fake in rig.fakes.values() for asked in fake.asked if asked.id[0] == session}
        assert len(homes) == 1


async def test_an_engine_that_hangs_is_replaced(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.fleet.replicas.TICK_SECONDS", 0.005)
    monkeypatch.setattr("stoker.fleet.silence.TICK_SECONDS", 0.005)
    monkeypatch.setattr("stoker.fleet.silence.HUNG_SECONDS", 0.05)
    rig = await launch(2)
    stream = rig.pool.generate(ask(), Route(tenant="t"))
    tokens = [(await anext(stream)).tokens[0].id for _ in range(3)]
    stuck = next(fake for fake in rig.fakes.values() if fake.open)
    zeros = {name: 0 for name in EngineStats.__struct_fields__ if name != "waiting_by_lane"}
    stuck.stats = EngineStats(**{**zeros, "steps": 3, "step_seconds": 0.001})
    stuck.heal = False
    stuck.running.clear()
    stuck.heartbeat_age = float("inf")
    async for progress in stream:
        tokens += [token.id for token in progress.tokens]
    assert tokens == whole(ask())
    assert len(stuck.killed) == 1
    assert "hung" in stuck.killed[0]


async def test_what_the_pool_says_of_itself(launch: Launch) -> None:
    rig = await launch(2)
    state = rig.pool.state
    assert isinstance(state, Ready)
    assert (state.context, state.kv_tokens) == (4096, 2 << 16)
    rig[0].heal = False
    rig[0].die()
    assert isinstance(rig.pool.state, Ready)
    status = rig.pool.replicas()
    assert (status["m/0"].status, status["m/1"].status) == ("down", "ready")
    assert "restarting" in (status["m/0"].reason or "")
    rig[1].heal = False
    rig[1].die()
    assert isinstance(rig.pool.state, Down)
    rig[0].be(Starting(stage="loading weights", fraction=0.5))
    assert rig.pool.state == Starting(stage="loading weights", fraction=0.5)


async def test_replicas_wait_for_the_first(launch: Launch) -> None:
    """A model that cannot be served is found out once, not by all of its engines."""
    fakes: list[FakeReplica] = []

    class Slow(FakeReplica):
        async def start(self) -> None:
            self.be(Starting(stage="loading", fraction=0.0))

    def make(name: str, **callbacks: Any) -> FakeReplica:
        fakes.append(Slow(name, **callbacks))
        return fakes[-1]

    pool = Pool("m", FakeLauncher(make), replicas=3)
    await pool.start()
    await asyncio.sleep(0.01)
    assert [fake.state for fake in fakes[1:]] == [Starting(stage="starting", fraction=0.0)] * 2
    fakes[0].be(Down(reason="no such model", final=True))
    await asyncio.sleep(0.01)
    assert pool.state == Down(reason="no such model", final=True)
    assert fakes[1].state == Starting(stage="starting", fraction=0.0)
    await pool.stop()


async def test_a_lost_request_is_not_the_pools_end(launch: Launch) -> None:
    """The engine gives a client up that stood still; nobody died, nobody is a suspect."""
    rig = await launch(1)
    stream = rig.pool.generate(ask(tokens=50), Route(tenant="t"))
    tokens: list[int] = []
    async for progress in stream:
        tokens += [token.id for token in progress.tokens]
        if len(tokens) in (5, 6, 7, 8):
            rig[0].lose(LostError("engine_lost_client", "it stood still", suspect=False))
    assert tokens == whole(ask(tokens=50))
    assert rig.pool.replayed == 4


async def test_each_attempt_is_a_span_with_the_engines_phases_in_it() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    fakes: dict[str, FakeReplica] = {}

    def make(name: str, **callbacks: Any) -> FakeReplica:
        fakes[name] = FakeReplica(name, **callbacks)
        return fakes[name]

    pool = Pool("m", FakeLauncher(make), replicas=2, traces=Traces(provider))
    await pool.start()
    await until(lambda: len(fakes) == 2 and all(isinstance(fake.state, Ready) for fake in fakes.values()))
    for fake in fakes.values():
        fake.deadly = lambda request, output: output == 3 and not request.output_ids
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    request = Generate(id="a", prompt_ids=[1, 2], sampling=SamplingParams(max_tokens=6), traceparent=parent)
    async with aclosing(pool.generate(request, Route(tenant="t"))) as steps:
        assert len([progress async for progress in steps]) == 6
    figures = pool.routing()
    assert (figures.replays, figures.repeated_tokens) == (1, 2 + 3)
    assert sum(figures.decisions.values()) == 2
    assert figures.index.keys() == fakes.keys()
    await pool.stop()
    spans = exporter.get_finished_spans()
    attempts = [span for span in spans if span.name == "route"]
    assert [(span.attributes or {}).get("error.type") for span in attempts] == ["service_unavailable_error", None]
    assert len({(span.attributes or {})["stoker.replica"] for span in attempts}) == 2
    for span in attempts:
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == parent.split("-")[2]
        phases = [part for part in spans if part.parent and part.parent.span_id == span.context.span_id]
        assert sorted(part.name for part in phases) == ["decode", "prefill", "queued"]
    told = [asked.traceparent for fake in fakes.values() for asked in fake.asked]
    assert sorted(told) == sorted(
        f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-01" for span in attempts
    )
