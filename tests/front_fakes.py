"""A model that is its own tokenizer (one token a byte) and an engine that does what a script says."""

from __future__ import annotations

import asyncio
import codecs
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from tokenizers import AddedToken

from stoker.fleet.backend import ReplicaStatus, RoutingFigures, State
from stoker.fleet.route import Route
from stoker.models.info import ModelInfo
from stoker.models.text.parse.format import FORMATS, StartState
from stoker.types.chat import ChatRequest
from stoker.types.wire import Generate, Progress, Ready, SampledToken

EOS = 256
BIG = 257  # a token that is 64 KiB of text in an output
FIRST_MARK = 258
MARKS = sorted({mark for format in FORMATS.values() for mark in format.marks})  # a token each
VOCAB = FIRST_MARK + len(MARKS)


INFO = ModelInfo(
    name="fake", architecture="fake", context=4096, vocab_size=VOCAB, eos_ids=(EOS,), fingerprint="0123456789abcdef"
)


def _bytes(token: int) -> bytes:
    """What a token is in a text; the end of an output is nothing."""
    if token == BIG:
        return b"x" * 65_536
    return bytes([token]) if token < 256 else MARKS[token - FIRST_MARK].encode() if token >= FIRST_MARK else b""


class FakeDetokenizer:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, ids: Sequence[int]) -> str:
        return self._decoder.decode(b"".join(map(_bytes, ids)))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class FakeVocabulary:
    def __init__(self) -> None:
        self.added = {FIRST_MARK + place: AddedToken(mark) for place, mark in enumerate(MARKS)}
        self.special = frozenset({EOS})


class FakeText:
    """`state` is what every prompt leaves open."""

    vocab_size = VOCAB
    processor = None
    eos_ids = frozenset({EOS})

    def __init__(self, family: str = "plain", state: StartState = StartState.NONE) -> None:
        self.vocabulary = FakeVocabulary()
        self.family = family
        self.state = state
        self.rendered: list[ChatRequest] = []
        self.owners: list[str | None] = []

    def prompt_state(self, prompt_ids: Sequence[int]) -> StartState:
        return self.state

    def render(self, request: ChatRequest, *, owner: str | None = None) -> list[int]:
        self.rendered.append(request)
        self.owners.append(owner)
        return self.encode("".join(f"{m.role}:{m.content}\n" for m in request.messages))

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(token for token in ids if token < 256).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return b"<eos>" if token_id == EOS else b"" if token_id in (BIG, VOCAB) else _bytes(token_id)

    def detokenizer(self, *, skip_special: bool = True) -> FakeDetokenizer:
        return FakeDetokenizer()


def write(text: str) -> list[int]:
    """`text` as a model writes it: marks are one token each."""
    ids: list[int] = []
    for part in re.split(f"({'|'.join(map(re.escape, MARKS))})", text):
        ids += [FIRST_MARK + MARKS.index(part)] if part in MARKS else part.encode()
    return ids


# one act of a script: tokens to give (bytes or ids), a pause in seconds, an error to raise, or the end
Act = bytes | list[int] | float | Exception | str


def say(text: str, *, size: int = 1, pause: float = 0.0, finish: str = "stop") -> list[Act]:
    """A script that gives `text` in pieces of `size` tokens and ends."""
    ids = write(text)
    acts: list[Act] = []
    for start in range(0, len(ids), size):
        if pause:
            acts.append(pause)
        acts.append(ids[start : start + size])
    return [*acts, finish]


class FakeBackend:
    """`script(request)` tells what each request does. `open` are requests being generated now."""

    def __init__(self, script: Callable[[Generate], Iterable[Act]] | None = None, *, context: int = 4096) -> None:
        self.script = script or (lambda _: say("Hello there."))
        self.state: State = Ready(
            context=context, kv_tokens=1 << 20, block_size=16, dtype="float32", device="cpu", load_seconds=0.1
        )
        self.heartbeat_age = 0.0
        self.cached = 0
        self.requests: list[Generate] = []
        self.routes: list[Route] = []
        self.open: set[str] = set()
        self.aborted: list[str] = []
        self.changed = asyncio.Event()

    def replicas(self) -> dict[str, ReplicaStatus]:
        ready = isinstance(self.state, Ready)
        return {"fake/0": ReplicaStatus(status="ready" if ready else "down", heartbeat_age=self.heartbeat_age)}

    def routing(self) -> RoutingFigures:
        return RoutingFigures()

    async def generate(self, request: Generate, route: Route) -> AsyncGenerator[Progress]:
        self.requests.append(request)
        self.routes.append(route)
        self.open.add(request.id)
        self._tell()
        ended = False
        output = 0
        try:
            for act in self.script(request):
                match act:
                    case float():
                        await asyncio.sleep(act)
                    case Exception():
                        ended = True
                        raise act
                    case str():
                        ended = True
                        yield Progress(id=request.id, cached=self.cached, output=output, finish=act)
                    case _:
                        tokens = [self._token(token, request) for token in act]
                        output += len(tokens)
                        yield Progress(id=request.id, tokens=tokens, cached=self.cached, output=output, waited=2)
        finally:
            if not ended:
                self.aborted.append(request.id)
            self.open.discard(request.id)
            self._tell()

    def _token(self, token: int, request: Generate) -> SampledToken:
        if request.sampling.logprobs is None:
            return SampledToken(id=token)
        top = [((token + shift) % 256, -0.5 - shift) for shift in range(request.sampling.logprobs)]
        return SampledToken(id=token, logprob=-0.5, top=top)

    def _tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def until(self, holds: Callable[[], bool], within: float = 5.0) -> None:
        """Wait until something about the open requests holds."""
        async with asyncio.timeout(within):
            while not holds():
                await self.changed.wait()
