"""A Stoker whose engine is a script: gateway, dialects, rendering, grammars and parsing are real, the model's words are
given.

So a client's tool loop can be looked at without a model that is clever enough for it, and with prompts longer than the
demo model can read. The script has every tool loop end: it makes one call, and quotes what came back.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from clients.server import CheckError
from stoker.config import GatewayConfig
from stoker.fleet.backend import State
from stoker.gateway.app import create_app
from stoker.gateway.server import serve
from stoker.models.info import read_info
from stoker.models.source import resolve
from stoker.models.text.guidance import Guide
from stoker.models.text.model import TextModel
from stoker.service.grammar_trial import GrammarTrial
from stoker.service.pipeline import Service
from stoker.types.wire import EngineStats, Generate, Progress, Ready, SampledToken

CONTEXT = 200_000
START_SECONDS = 60.0
STEP = 4  # tokens of a step

Script = Callable[[str], str]


@dataclass(frozen=True)
class ToolScript:
    """Calls `tool` once in each conversation that has it, then repeats the `secret` that its result holds."""

    tool: str
    arguments: dict[str, object]
    secret: re.Pattern[str]

    def __call__(self, prompt: str) -> str:
        results = prompt.partition("<tool_response>\n")[2]
        found = self.secret.search(results)
        if found:
            return f"The note says {found[0]}."
        if results:
            return f"The result has no secret: {results[:500]}"
        if f'"name":"{self.tool}"' not in prompt.replace(" ", ""):
            return "A note"
        call = msgspec.json.encode({"name": self.tool, "arguments": self.arguments}).decode()
        return f"I will look.\n<tool_call>\n{call}\n</tool_call>"


class ScriptedEngine:
    """A `Backend` over a script. `prompts` are the texts it was shown; a prompt's cached part is what it shares with an
    earlier one, in whole blocks."""

    def __init__(self, text: TextModel, script: Script) -> None:
        self.state: State = Ready(
            context=CONTEXT, kv_tokens=CONTEXT, block_size=16, dtype="float32", device="script", load_seconds=0.0
        )
        self.stats: EngineStats | None = None
        self.heartbeat_age = 0.0
        self.prompts: list[str] = []
        self.text = text
        self._script = script
        self._guide = Guide(text)
        self._known: list[list[int]] = []

    async def generate(self, request: Generate) -> AsyncGenerator[Progress]:
        """Raises CheckError if the request's grammar forbids what the script says."""
        prompt = self.text.decode(request.prompt_ids)
        self.prompts.append(prompt)
        cached = max((_shared(known, request.prompt_ids) for known in self._known), default=0)
        ids = self.text.vocabulary.encode_parts([self._script(prompt)])
        if request.grammar is not None:
            matcher = self._guide.compile(request.grammar)
            if not (all(map(matcher.consume_token, ids)) and matcher.is_accepting()):
                raise CheckError(f"the grammar of this request forbids {self.text.decode(ids)!r}")
        self._known.append([*request.prompt_ids, *ids])
        for start in range(0, len(ids), STEP):
            tokens = [SampledToken(id=token) for token in ids[start : start + STEP]]
            yield Progress(id=request.id, tokens=tokens, cached=cached, output=start + len(tokens))
            await asyncio.sleep(0)
        yield Progress(id=request.id, cached=cached, output=len(ids) + 1, finish="stop")


def _shared(known: list[int], ids: list[int]) -> int:
    limit = min(len(known), len(ids) - 1)
    return next((at for at in range(limit) if known[at] != ids[at]), limit) // 16 * 16


@dataclass(frozen=True)
class ScriptedServer:
    base: str
    engine: ScriptedEngine


@contextmanager
def scripted_server(script: Script) -> Generator[ScriptedServer]:
    """Serve on a free loopback port, from a thread of its own, until the block ends. The model is called `demo`."""
    files = resolve("demo", revision=None, data_dir=Path("unused"), progress=lambda stage, fraction: None)
    engine = ScriptedEngine(TextModel.load(files), script)
    loop = asyncio.new_event_loop()
    started: list[int] = []
    ready, stop = threading.Event(), asyncio.Event()

    def listening(port: int) -> None:
        started.append(port)
        ready.set()

    async def run() -> None:
        trial = GrammarTrial(files)
        service = Service(engine.text, read_info(files), engine, name="demo", trial=trial)
        config = GatewayConfig(port=0)
        try:
            await serve(create_app(service, config, ()), config, started=listening, stop=stop)
        finally:
            service.close()
            await trial.close()
            ready.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="scripted-server")
    thread.start()
    try:
        if not ready.wait(START_SECONDS) or not started:
            raise RuntimeError("the scripted server did not start")
        yield ScriptedServer(f"http://127.0.0.1:{started[0]}", engine)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
