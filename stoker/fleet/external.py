"""A server of another make as a `Replica`: vLLM, through its completions route, token ids in and token ids out.

We render the prompt, send its ids, and read ids back, so its users get our templates, our parser and our tool calls,
and a stream that it loses goes on elsewhere by token replay. Owns the connection, the health of the server as its own
health route tells it, and the translation of sampling parameters. What it cannot do is refused by name: grammars are
not carried over, so its models are served without constraints.

Its own flaws: what of a prompt was cached is known at the end only; an output that goes on behind tokens of another
server is part of the prompt there, so its penalties and seeds begin anew.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

import aiohttp
import msgspec

from stoker.config import ConfigError, ServerConfig
from stoker.fleet.backend import Down, Starting, State
from stoker.fleet.completions import Reply, body_of, refusal
from stoker.types.errors import ErrorKind, LostError, StokerError, invalid
from stoker.types.wire import EngineStats, Generate, KVNews, Progress, Ready

POLL_SECONDS = 1.0
FAILURES = 3  # health checks in a row after which it is down
CONNECT_SECONDS = 5.0
SILENCE_SECONDS = 300.0  # longest wait for the next bytes of a stream
MAX_LINE = 8 << 20  # bytes of one event
PAGE = 16  # tokens; what the service cuts prompts by

log = logging.getLogger(__name__)


class ExternalLauncher:
    """A `Launcher` of what runs already. Replica MODEL/N is the N-th of `servers`.

    Raises ConfigError for a server whose key is not in the environment."""

    def __init__(self, servers: Sequence[ServerConfig], *, context: int, eos_ids: tuple[int, ...]) -> None:
        self._servers = [(server, _key(server)) for server in servers]
        self.limit: int | None = len(self._servers)
        self._context = context
        self._eos_ids = eos_ids

    def make(
        self,
        name: str,
        *,
        proven: Callable[[], bool],
        on_state: Callable[[State], None],
        on_kv: Callable[[KVNews], None],
    ) -> ExternalServer:
        server, key = self._servers[int(name.rpartition("/")[2])]
        return ExternalServer(server, name, context=self._context, eos_ids=self._eos_ids, key=key, on_state=on_state)

    def forget(self, name: str) -> None:
        """Nothing: its connections are closed, and the server is somebody else's."""


class ExternalServer:
    """`await start()`, then use as a `Replica`; `await stop()` closes its connections. `eos_ids` are the model's own
    end tokens, which never reach the client."""

    restarts = 0
    stats: EngineStats | None = None  # it has none of ours

    def __init__(
        self,
        config: ServerConfig,
        name: str,
        *,
        context: int,
        eos_ids: tuple[int, ...],
        key: str | None = None,
        on_state: Callable[[State], None] = lambda _: None,
    ) -> None:
        self.name = name
        self.zone = config.zone
        self.slots = config.concurrency
        self._config = config
        self._context = context
        self._eos_ids = eos_ids
        self._headers = {"authorization": f"Bearer {key}"} if key else {}
        self._on_state = on_state
        self._state: State = Starting(stage=f"waiting for {config.url}", fraction=0.0)
        self._healthy = float("-inf")
        self._session: aiohttp.ClientSession | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._free = asyncio.Semaphore(config.concurrency)
        self._open: set[asyncio.Future[LostError]] = set()

    @property
    def state(self) -> State:
        return self._state

    @property
    def heartbeat_age(self) -> float:
        """Its health route tells less than an engine's own loop: a stuck model may still answer there."""
        return time.monotonic() - self._healthy

    async def start(self) -> None:
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        self._session = aiohttp.ClientSession(
            headers=self._headers, timeout=timeout, connector=aiohttp.TCPConnector(limit=0), read_bufsize=1 << 18
        )
        self._set_state(Starting(stage=f"waiting for {self._config.url}", fraction=0.0))
        self._watcher = asyncio.create_task(self._watch(self._session))

    async def stop(self) -> None:
        if self._watcher:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
            self._watcher = None
        self.evict()
        if self._session:
            await self._session.close()
            self._session = None
        self._set_state(Down(reason="stopped", final=True))

    def evict(self) -> None:
        self._lose(LostError("engine_stopping", "The server is not used any more.", suspect=False))

    def kill(self, reason: str) -> None:
        """Its process is not ours: what runs there is taken away, and it counts as down until it is healthy again."""
        self._set_state(Down(reason=reason))
        self._lose(LostError("engine_crashed", f"The server was lost: {reason}.", suspect=False))

    def resubscribe(self) -> None:
        """It tells nothing of its cache."""

    async def generate(self, request: Generate) -> AsyncGenerator[Progress]:
        if request.grammar is not None or request.images:
            what = "images" if request.images else "a grammar"
            raise invalid("unsupported_parameter", f"The server behind this model cannot be given {what}.")
        if self._free.locked():
            raise StokerError(ErrorKind.CAPACITY, "engine_full", "The server has all it may be given.", retry_after=1.0)
        lost: asyncio.Future[LostError] = asyncio.get_running_loop().create_future()
        self._open.add(lost)
        try:
            async with self._free:
                async for progress in self._stream(request, lost):
                    yield progress
        finally:
            self._open.discard(lost)

    async def _stream(self, request: Generate, lost: asyncio.Future[LostError]) -> AsyncGenerator[Progress]:
        session = self._session
        if session is None or not isinstance(self._state, Ready):
            raise StokerError(ErrorKind.UNAVAILABLE, "engine_down", "The server does not answer.", retry_after=5.0)
        reply = Reply(request, self._eos_ids)
        url = f"{self._config.url}/v1/completions"
        try:
            async with session.post(url, json=body_of(request, self._config.model)) as response:
                if response.status != 200:
                    raise refusal(response.status, await response.text())
                while line := await _next_line(response.content, lost):
                    progress = reply.read(line)
                    if progress is not None:
                        yield progress
                        if progress.finish is not None:
                            return
        except (aiohttp.ClientError, TimeoutError, ValueError, msgspec.MsgspecError) as error:
            raise self._broken(error) from error
        raise self._broken(EOFError("the stream ended early"))

    def _broken(self, error: Exception) -> LostError:
        """It gets nothing more before its health route has answered again: what was lost here must not come back."""
        text = f"{self._config.url}: {type(error).__name__}: {str(error)[:200]}"
        log.warning("a stream of an external server broke: %s", text, extra={"action": "external_broken"})
        if isinstance(self._state, Ready):
            self._set_state(Down(reason=text))
        return LostError("engine_crashed", "The server was lost while it worked on this request.", suspect=True)

    async def _watch(self, session: aiohttp.ClientSession) -> None:
        failed = 0
        while True:
            try:
                async with session.get(
                    f"{self._config.url}/health", timeout=aiohttp.ClientTimeout(total=CONNECT_SECONDS)
                ) as response:
                    healthy, reason = response.status == 200, f"its health route says {response.status}"
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                healthy, reason = False, str(error) or type(error).__name__
            if healthy:
                failed = 0
                self._healthy = time.monotonic()
                if not isinstance(self._state, Ready):
                    self._set_state(self._ready())
            else:
                failed += 1
                if failed == FAILURES and isinstance(self._state, Ready):
                    self._set_state(Down(reason=f"{self._config.url}: {reason}"))
                    self._lose(LostError("engine_crashed", "The server was lost.", suspect=False))
            await asyncio.sleep(POLL_SECONDS)

    def _ready(self) -> Ready:
        return Ready(
            context=self._context,
            kv_tokens=self._config.kv_tokens,
            block_size=PAGE,
            dtype="unknown",
            device=self._config.url,
            load_seconds=0.0,
        )

    def _lose(self, error: LostError) -> None:
        for future in self._open:
            if not future.done():
                future.set_result(error)

    def _set_state(self, state: State) -> None:
        self._state = state
        self._on_state(state)


def _key(server: ServerConfig) -> str | None:
    if server.key_env is None:
        return None
    if server.key_env not in os.environ:
        raise ConfigError(f"the key of {server.url} is to be in {server.key_env}, which is not set in the environment")
    return os.environ[server.key_env]


async def _next_line(stream: aiohttp.StreamReader, lost: asyncio.Future[LostError]) -> bytes:
    """The next line, empty at the end. Raises the LostError that `lost` has, once it has one."""
    reading = asyncio.ensure_future(stream.readline(max_line_length=MAX_LINE))
    try:
        await asyncio.wait((reading, lost), return_when=asyncio.FIRST_COMPLETED)
        if lost.done():
            raise lost.result()
        return reading.result()
    finally:
        if not reading.done():
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
