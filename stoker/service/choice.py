"""One choice of one request: engine progress in, events out. Pure: no I/O, no tasks.

Owns the way of a token through detokenizer, output parser and stop strings, the alignment of log-probabilities with
what was put out, and the counts of this choice. Does not own talking to the engine or merging choices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from stoker.models.text.parse.format import Piece
from stoker.service.pieces import PieceReader
from stoker.service.stop import StopMatcher
from stoker.types.chat import (
    ChoiceDone,
    Delta,
    Event,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
    ToolCallDone,
)
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.wire import Progress, SampledToken


class Parser(Protocol):
    """Pieces of one output -> reasoning, text and calls. `reasoning`: what comes next is reasoning."""

    @property
    def reasoning(self) -> bool: ...

    def push(self, pieces: Sequence[Piece]) -> Sequence[Delta]: ...

    def finish(self, reason: FinishReason) -> tuple[Sequence[Delta], FinishReason]:
        """The output ended: what was held back, and what the client is told of the reason."""
        ...


class PlainParser:
    """Every output is text: raw completions."""

    reasoning = False

    def __init__(self, index: int) -> None:
        self._index = index

    def push(self, pieces: Sequence[Piece]) -> Sequence[Delta]:
        return [TextDelta(index=self._index, text=text) for text, _ in pieces]

    def finish(self, reason: FinishReason) -> tuple[Sequence[Delta], FinishReason]:
        return (), reason


class Choice:
    """State of choice `index`.

    begun      the engine has news of it, so its prompt was computed
    cached     prompt tokens the engine found in its prefix cache
    waited     engine steps from its arrival there to its first token
    output     tokens generated so far, `reasoning` of them before the answer
    done       nothing follows; with progress left unread, the engine must be told to stop
    """

    def __init__(
        self,
        index: int,
        reader: PieceReader,
        parser: Parser,
        token_bytes: Callable[[int], bytes],
        stops: Sequence[str],
        *,
        logprobs: bool,
    ) -> None:
        self.index = index
        self.begun = False
        self.cached = 0
        self.waited = 0
        self.output = 0
        self.reasoning = 0
        self.done = False
        self._reader = reader
        self._parser = parser
        self._token_bytes = token_bytes
        self._stops = StopMatcher(stops)
        self._want_logprobs = logprobs
        self._parsed = 0  # characters that came out of the parser
        self._sent = 0  # and of these, the ones that were put out
        self._pending: deque[tuple[int, TokenLogprob]] = deque()  # (what was parsed before the token came, token)
        self._called = False
        self._stop: str | None = None

    def push(self, progress: Progress) -> list[Event]:
        """Events for one step's progress. Raises StokerError if the engine could not finish this choice."""
        self.begun = True
        self.cached = max(self.cached, progress.cached)
        self.waited = max(self.waited, progress.waited)
        self.output = max(self.output, progress.output)
        if progress.finish is not None:
            _check_end(progress.finish)
        deltas: list[Event] = []
        for token in progress.tokens:
            self._take(token, deltas)
            if self._stop is not None:
                return self._end(deltas, "tool_calls" if self._called else "stop")
        if progress.finish is None:
            return self._events(deltas, everything=False)
        for delta in self._parser.push(self._reader.finish()):
            self._pass(delta, deltas)
        rest, reason = self._parser.finish(progress.finish)
        for delta in rest:
            self._pass(delta, deltas)
        self._release_text(deltas)
        return self._end(deltas, reason if self._stop is None else "tool_calls" if self._called else "stop")

    def _take(self, token: SampledToken, deltas: list[Event]) -> None:
        """One token at a time, so that nothing depends on how many an engine gives in one step."""
        if self._want_logprobs:
            self._pending.append((self._parsed, self._logprob(token)))
        before = self._parser.reasoning
        for delta in self._parser.push(self._reader.push((token.id,))):
            self._pass(delta, deltas)
        self.reasoning += before or self._parser.reasoning

    def _pass(self, delta: Delta, deltas: list[Event]) -> None:
        """What the parser gave, on to the client unless a stop string ended the text before it."""
        if self._stop is not None:
            return
        if isinstance(delta, TextDelta):
            self._parsed += len(delta.text)
            text, self._stop = self._stops.push(delta.text)
            if text and text == delta.text:
                self._sent += len(text)
                _append(deltas, delta)
            else:
                self._put(text, deltas)
            return
        self._release_text(deltas)
        match delta:
            case ReasoningDelta(text=text) | ToolCallDelta(arguments=text):
                self._parsed += len(text)
                self._sent += len(text)
            case ToolCallDone(complete=True):
                self._called = True
            case _:
                pass
        _append(deltas, delta)

    def _release_text(self, deltas: list[Event]) -> None:
        """The text is over: what could have become a stop string is none."""
        if self._stop is None:
            self._put(self._stops.finish(), deltas)

    def _put(self, text: str, deltas: list[Event]) -> None:
        if text:
            self._sent += len(text)
            _append(deltas, TextDelta(index=self.index, text=text))

    def _end(self, deltas: list[Event], reason: FinishReason) -> list[Event]:
        self.done = True
        events = self._events(deltas, everything=self._stop is None)
        return [*events, ChoiceDone(index=self.index, reason=reason, stop=self._stop)]

    def _logprob(self, token: SampledToken) -> TokenLogprob:
        return TokenLogprob(
            id=token.id,
            text=self._token_bytes(token.id),
            logprob=0.0 if token.logprob is None else token.logprob,
            top=tuple((other, self._token_bytes(other), logprob) for other, logprob in token.top),
        )

    def _events(self, deltas: list[Event], *, everything: bool) -> list[Event]:
        """The step's deltas; its last text carries the log-probabilities of the tokens of which something has been put
        out. What a stop string cut off never is."""
        if not self._pending:
            return deltas
        ready: list[TokenLogprob] = []
        while self._pending and (everything or self._pending[0][0] < self._sent):
            ready.append(self._pending.popleft()[1])
        if ready:
            for place in range(len(deltas) - 1, -1, -1):
                delta = deltas[place]
                if isinstance(delta, TextDelta | ReasoningDelta):
                    deltas[place] = msgspec.structs.replace(delta, logprobs=tuple(ready))
                    break
            else:
                deltas.append(TextDelta(index=self.index, text="", logprobs=tuple(ready)))
        return deltas


def _check_end(reason: FinishReason) -> None:
    if reason == "error":
        raise StokerError(
            ErrorKind.INTERNAL, "generation_failed", "The model produced no usable probabilities for this request."
        )
    if reason == "abort":
        raise StokerError(
            ErrorKind.UNAVAILABLE, "engine_stopped", "The engine stopped before the output ended.", retry_after=1.0
        )


def _append(deltas: list[Event], delta: Delta) -> None:
    """What belongs together becomes one event a step."""
    if not deltas:
        deltas.append(delta)
        return
    match deltas[-1], delta:
        case (TextDelta() as last, TextDelta()) | (ReasoningDelta() as last, ReasoningDelta()):
            deltas[-1] = msgspec.structs.replace(last, text=last.text + delta.text)
        case ToolCallDelta() as last, ToolCallDelta():
            deltas[-1] = msgspec.structs.replace(last, arguments=last.arguments + delta.arguments)
        case _:
            deltas.append(delta)
