"""One choice of one request: engine progress in, text events out. Pure: no I/O, no tasks.

Owns detokenisation, the stop strings, the alignment of log-probabilities with text and the counts of this choice.
Does not own talking to the engine or merging choices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from stoker.models.text.detokenizer import Detokenizer
from stoker.service.stop import StopMatcher
from stoker.types.chat import ChoiceDone, Event, FinishReason, TextDelta, TokenLogprob
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.wire import Progress, SampledToken


class Choice:
    """State of choice `index`.

    begun    the engine has news of it, so its prompt was computed
    cached   prompt tokens the engine found in its prefix cache
    output   tokens generated so far
    done     nothing follows; with progress left unread, the engine must be told to stop
    """

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        token_bytes: Callable[[int], bytes],
        stops: Sequence[str],
        *,
        logprobs: bool,
    ) -> None:
        self.index = index
        self.begun = False
        self.cached = 0
        self.output = 0
        self.done = False
        self._detokenizer = detokenizer
        self._token_bytes = token_bytes
        self._stops = StopMatcher(stops)
        self._want_logprobs = logprobs
        self._made = 0  # characters detokenised
        self._sent = 0  # characters released
        self._pending: deque[tuple[int, TokenLogprob]] = deque()  # (where the token's text starts, token)

    def push(self, progress: Progress) -> list[Event]:
        """Events for one step's progress. Raises StokerError if the engine could not finish this choice."""
        self.begun = True
        self.cached = max(self.cached, progress.cached)
        self.output = max(self.output, progress.output)
        if progress.finish == "error":
            raise StokerError(
                ErrorKind.INTERNAL, "generation_failed", "The model produced no usable probabilities for this request."
            )
        if progress.finish == "abort":
            raise StokerError(
                ErrorKind.UNAVAILABLE, "engine_stopped", "The engine stopped before the output ended.", retry_after=1.0
            )
        text, stopped = self._advance(progress.tokens)
        if not stopped and progress.finish is not None:
            tail = self._detokenizer.finish()
            more, stopped = self._stops.push(tail)
            text += more
            if not stopped:
                text += self._stops.finish()
        self._sent += len(text)
        reason: FinishReason | None = "stop" if stopped else progress.finish
        events: list[Event] = []
        logprobs = self._release(everything=reason is not None and not stopped)
        if text or logprobs:
            events.append(TextDelta(index=self.index, text=text, logprobs=logprobs))
        if reason is not None:
            self.done = True
            events.append(ChoiceDone(index=self.index, reason=reason))
        return events

    def _advance(self, tokens: Sequence[SampledToken]) -> tuple[str, bool]:
        if not self._want_logprobs:
            return self._stops.push(self._detokenizer.push([token.id for token in tokens]))
        parts: list[str] = []
        for token in tokens:
            self._pending.append((self._made, self._logprob(token)))
            piece = self._detokenizer.push([token.id])
            self._made += len(piece)
            text, stopped = self._stops.push(piece)
            parts.append(text)
            if stopped:
                return "".join(parts), True
        return "".join(parts), False

    def _logprob(self, token: SampledToken) -> TokenLogprob:
        return TokenLogprob(
            id=token.id,
            text=self._token_bytes(token.id),
            logprob=0.0 if token.logprob is None else token.logprob,
            top=tuple((other, self._token_bytes(other), logprob) for other, logprob in token.top),
        )

    def _release(self, *, everything: bool) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of the tokens whose text has begun to be sent; what a stop string cut off never is."""
        ready: list[TokenLogprob] = []
        while self._pending and (everything or self._pending[0][0] < self._sent):
            ready.append(self._pending.popleft()[1])
        return tuple(ready)
