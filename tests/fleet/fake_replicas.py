"""Replicas without processes, for tests of what is above them: they write what is known before, and die when told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

from stoker.fleet.backend import Down, Starting, State
from stoker.types.errors import LostError, StokerError, invalid
from stoker.types.wire import EngineStats, Generate, KVNews, Progress, Ready, SampledToken

READY = Ready(context=4096, kv_tokens=1 << 16, block_size=16, dtype="float32", device="cpu", load_seconds=0.1)


def crashed() -> LostError:
    return LostError("engine_crashed", "The engine stopped while it worked on this request.", suspect=True)


def token_after(prompt: list[int], at: int) -> int:
    """What an engine writes: follows from the prompt and the position alone, as with a seed."""
    return (sum(prompt) + 7 * at) % 1000


class FakeReplica:
    """Ready as soon as it is started. A step takes a turn of the event loop while `running` is set; one in which
    `deadly` says so ends the engine. `asked` are all requests, `open` those that run, `aborted` those that left."""

    def __init__(
        self,
        name: str,
        *,
        proven: Callable[[], bool],
        on_state: Callable[[State], None],
        on_kv: Callable[[KVNews], None],
        zone: str = "",
        slots: int = 4,
    ) -> None:
        self.name, self.zone, self.slots = name, zone, slots
        self.restarts = 0
        self.state: State = Starting(stage="starting", fraction=0.0)
        self.stats: EngineStats | None = None
        self.heartbeat_age = 0.0
        self.running = asyncio.Event()
        self.running.set()
        self.deadly: Callable[[Generate, int], bool] = lambda request, output: False
        self.refuse: StokerError | None = None
        self.asked: list[Generate] = []
        self.open: dict[str, asyncio.Future[LostError]] = {}
        self.aborted: list[str] = []
        self.killed: list[str] = []
        self.most = 0
        self.heal = True
        self.on_kv = on_kv
        self._on_state = on_state

    async def start(self) -> None:
        self.be(READY)

    async def stop(self) -> None:
        self.lose(LostError("engine_stopping", "stopped", suspect=False))
        self.be(Down(reason="stopped", final=True))

    def evict(self) -> None:
        self.lose(LostError("engine_stopping", "moved", suspect=False))

    def kill(self, reason: str) -> None:
        self.killed.append(reason)
        self.die()

    def resubscribe(self) -> None:
        pass

    def be(self, state: State) -> None:
        self.state = state
        self._on_state(state)

    def die(self) -> None:
        """The engine's process is gone; a new one is there at once if it can `heal`."""
        self.be(Down(reason="killed; restarting"))
        self.lose(crashed())
        if self.heal:
            self.restarts += 1
            asyncio.get_running_loop().call_soon(self.be, READY)

    def lose(self, error: LostError) -> None:
        for future in self.open.values():
            if not future.done():
                future.set_result(error)

    async def generate(self, request: Generate) -> AsyncGenerator[Progress]:
        if self.refuse is not None:
            raise self.refuse
        if not isinstance(self.state, Ready):
            raise LostError("engine_down", "not ready", suspect=False)
        if len(request.prompt_ids) >= READY.context:
            raise invalid("context_length_exceeded", "too long")
        self.asked.append(request)
        lost = self.open[request.id] = asyncio.get_running_loop().create_future()
        self.most = max(self.most, len(self.open))
        output, ended = len(request.output_ids), False
        try:
            while True:
                running = asyncio.ensure_future(self.running.wait())
                await asyncio.wait((lost, running), return_when=asyncio.FIRST_COMPLETED)
                running.cancel()
                await asyncio.sleep(0)
                if self.deadly(request, output) and not lost.done():
                    self.die()
                if lost.done():
                    ended = True
                    raise lost.result()
                token = SampledToken(id=token_after(request.prompt_ids, output))
                output += 1
                ended = output >= (request.sampling.max_tokens or 8)
                yield Progress(id=request.id, tokens=[token], output=output, finish="length" if ended else None)
                if ended:
                    return
        finally:
            del self.open[request.id]
            if not ended:
                self.aborted.append(request.id)


class FakeLauncher:
    def __init__(self, make: Callable[..., FakeReplica]) -> None:
        self._make = make
        self.forgotten: list[str] = []
        self.limit: int | None = None

    def make(self, name: str, **callbacks: Any) -> FakeReplica:
        return self._make(name, **callbacks)

    def forget(self, name: str) -> None:
        self.forgotten.append(name)
