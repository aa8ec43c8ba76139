"""A pool over fake replicas, for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Any

import pytest
from fake_replicas import FakeLauncher, FakeReplica, token_after

from stoker.fleet.pool import Pool
from stoker.fleet.route import Route
from stoker.fleet.router import Router
from stoker.types.errors import StokerError
from stoker.types.sampling import SamplingParams
from stoker.types.wire import Generate, Progress

Launch = Callable[..., Awaitable["Rig"]]


class Rig:
    """A pool over fake replicas."""

    def __init__(self, pool: Pool, router: Router, fakes: dict[str, FakeReplica], launcher: FakeLauncher) -> None:
        self.pool, self.router, self.fakes, self.launcher = pool, router, fakes, launcher

    def __getitem__(self, number: int) -> FakeReplica:
        return self.fakes[f"m/{number}"]

    @property
    def idle(self) -> bool:
        return not any(fake.open for fake in self.fakes.values()) and not any(
            replica.load.inflight or replica.load.started - replica.load.ended
            for replica in self.router.replicas.values()
        )


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10.0):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def ask(name: str = "r", *, tokens: int = 20, prompt: int = 10, **sampling: Any) -> Generate:
    ids = [prompt + i for i in range(prompt)]
    return Generate(id=name, prompt_ids=ids, sampling=SamplingParams(max_tokens=tokens, **sampling))


def whole(request: Generate) -> list[int]:
    return [token_after(request.prompt_ids, at) for at in range(request.sampling.max_tokens or 0)]


async def collect(rig: Rig, request: Generate, route: Route | None = None) -> tuple[list[int], Progress]:
    tokens: list[int] = []
    async with aclosing(rig.pool.generate(request, route or Route(tenant="t"))) as stream:
        async for progress in stream:
            tokens += [token.id for token in progress.tokens]
            if progress.finish:
                return tokens, progress
    raise AssertionError("the stream ended without a finish")


async def refusal(rig: Rig, request: Generate, route: Route | None = None) -> StokerError:
    with pytest.raises(StokerError) as caught:
        await collect(rig, request, route)
    return caught.value
