"""One engine process of our own as a `Replica`: started, watched, restarted.

Owns the process and its run folder. Does not route (one replica) and does not decide that a silent engine hangs: it
reports the age of the last heartbeat, and ends the engine when it is told to.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

import msgspec

from stoker.engine.client import EngineClient, Pixels, Status
from stoker.engine.spec import EngineSpec
from stoker.fleet.backend import Down, Starting, State
from stoker.fleet.seat import LocalSeat, MakeSeat, Seat
from stoker.types.errors import ErrorKind, LostError, StokerError
from stoker.types.wire import EngineStats, Generate, KVNews, Progress, Ready

BACKOFF_SECONDS = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)
STABLE_SECONDS = 60.0  # an engine that served this long starts the backoff anew
STOP_SECONDS = 0.5  # between asking an engine to end and killing it

log = logging.getLogger(__name__)


class LocalReplica:
    """An engine in a child process. `await start()`, then use as a `Replica`; `await stop()` leaves no process, and it
    may be started again.

    `spec` makes the engine's specification for the endpoint it gets. An engine that fails before it ever served is not
    tried again (`Down.final`), for its model or configuration is wrong, unless it is `proven`: another replica of the
    same model has served. One that served and died is restarted for ever. `loading` bounds how many engines load at the
    same time. `on_kv` gets what each life of the engine says of its prefix cache, `pixels` gives what it asks for, both
    as with `EngineClient`.
    """

    def __init__(
        self,
        spec: Callable[[str], EngineSpec],
        *,
        name: str = "engine",
        zone: str = "",
        slots: int = 64,
        seat: MakeSeat = LocalSeat,
        loading: asyncio.Semaphore | None = None,
        proven: Callable[[], bool] = lambda: False,
        on_state: Callable[[State], None] = lambda _: None,
        on_kv: Callable[[KVNews], None] | None = None,
        pixels: Pixels | None = None,
    ) -> None:
        self.name = name
        self.zone = zone
        self.slots = slots
        self.restarts = 0
        self._spec = spec
        self._make_seat = seat
        self._loading = loading or asyncio.Semaphore(1)
        self._proven = proven
        self._on_state = on_state
        self._on_kv = on_kv
        self._pixels = pixels
        self._state: State = Starting(stage="starting the engine", fraction=0.0)
        self._client: EngineClient | None = None
        self._seat: Seat | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._served = False
        self._turn = False  # it holds one of `loading`
        self._killed: str | None = None  # why it was ended from here
        self._stopping = asyncio.Event()

    @property
    def state(self) -> State:
        return self._state

    @property
    def stats(self) -> EngineStats | None:
        return self._client.stats if self._client else None

    @property
    def heartbeat_age(self) -> float:
        return self._client.heartbeat_age if self._client else float("inf")

    @property
    def pid(self) -> int | None:
        """The engine's process id while one runs."""
        return self._seat.pid if self._seat else None

    async def start(self) -> None:
        self._stopping.clear()
        self._set_state(Starting(stage="starting the engine", fraction=0.0))
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        self._stopping.set()
        if self._client:
            self._client.shutdown()
        _, late = await asyncio.wait({watcher}, timeout=STOP_SECONDS)
        if late and self._seat:
            self._seat.kill()
        await watcher
        self._set_state(Down(reason="stopped", final=True))

    def evict(self) -> None:
        if self._client:
            self._client.fail(_moved())

    def kill(self, reason: str) -> None:
        if self._seat:
            self._killed = reason
            self._seat.kill()

    def generate(self, request: Generate) -> AsyncGenerator[Progress]:
        client = self._client
        if client is None or not isinstance(self._state, Ready):
            raise unavailable(self._state)
        return client.generate(request)

    def resubscribe(self) -> None:
        if self._client:
            self._client.subscribe()

    async def _watch(self) -> None:
        attempt = 0
        while await self._take_turn():
            started = time.monotonic()
            reason = await self._run()
            if self._stopping.is_set():
                return
            if isinstance(self._state, Down) and self._state.final:
                log.error("engine failed: %s", reason, extra={"action": "engine_failed", "replica": self.name})
                return
            attempt = 0 if time.monotonic() - started > STABLE_SECONDS else attempt + 1
            pause = BACKOFF_SECONDS[min(attempt, len(BACKOFF_SECONDS) - 1)]
            extra = {"action": "engine_restart", "replica": self.name}
            log.error("engine stopped: %s; restarting in %.1f s", reason, pause, extra=extra)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause)
                return
            self.restarts += 1
            self._set_state(Starting(stage="restarting the engine", fraction=0.0))

    async def _take_turn(self) -> bool:
        """Wait until it may load; False if it is to stop instead."""
        turn = asyncio.ensure_future(self._loading.acquire())
        stop = asyncio.ensure_future(self._stopping.wait())
        await asyncio.wait((turn, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not turn.done():
            turn.cancel()
            return False
        self._turn = True
        return True

    def _end_turn(self) -> None:
        if self._turn:
            self._turn = False
            self._loading.release()

    async def _run(self) -> str:
        """One life of the engine process; returns why it ended. Whoever reads `state` knows it before a request is
        lost, so none of them is sent here again."""
        reason = "the engine could not be started"
        seat, client = self._make_seat(), None
        self._seat, self._killed = seat, None
        try:
            address = await seat.open()
            client = EngineClient(
                address.endpoint, self._on_status, curve=address.client, on_kv=self._on_kv, pixels=self._pixels
            )
            self._client = client
            ended = await seat.run(msgspec.structs.replace(self._spec(address.endpoint), curve=address.engine))
            reason = self._killed or ended
        except OSError as error:
            reason = self._killed or f"{reason}: {error}"
        finally:
            self._seat = self._client = None
            await seat.close()
            self._end_turn()
            if self._stopping.is_set():
                lost = _moved()
            else:
                final = not (self._served or self._proven())
                self._set_state(Down(reason=reason if final else f"{reason}; restarting", final=final))
                lost = _crashed()
            if client:
                client.fail(lost)
                await client.close()
        return reason

    def _on_status(self, status: Status) -> None:
        if isinstance(status, Ready):
            self._served = True
            self._end_turn()
            self._set_state(status)
        else:
            self._set_state(Starting(stage=status.stage, fraction=status.fraction))

    def _set_state(self, state: State) -> None:
        self._state = state
        self._on_state(state)


def unavailable(state: State) -> StokerError:
    """The answer to a request that came while the engine does not serve."""
    if isinstance(state, Starting):
        text = f"The model is not ready: {state.stage} ({state.fraction:.0%})."
        return StokerError(ErrorKind.UNAVAILABLE, "model_loading", text, retry_after=2.0)
    reason = state.reason if isinstance(state, Down) else "no connection"
    text = f"The engine is down: {reason}."
    return StokerError(ErrorKind.UNAVAILABLE, "engine_down", text, retry_after=5.0)


def _crashed() -> LostError:
    message = "The engine stopped while it worked on this request and is being restarted. Send it again."
    return LostError("engine_crashed", message, suspect=True)


def _moved() -> LostError:
    return LostError("engine_stopping", "The engine was stopped while it worked on this request.", suspect=False)
