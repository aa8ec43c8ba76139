"""One admitted request on its way through the engine: its choices as one stream of events, its usage at any moment.

Owns what is open in the backend for this request and closes it. Nothing is generated before its events are read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec

from stoker.fleet.backend import Backend
from stoker.fleet.route import Route
from stoker.models.text.model import TextModel
from stoker.obs.metrics import Generated, Metrics
from stoker.obs.traces import Span
from stoker.service.choice import Choice
from stoker.service.constraints import Constraint
from stoker.service.divergence import Divergence
from stoker.service.images import LoadedImage
from stoker.service.merge import merge
from stoker.types.chat import Begun, ChatRequest, CompletionRequest, Done, Event, TextDelta
from stoker.types.errors import ErrorKind, StokerError, word_for
from stoker.types.sampling import SamplingParams
from stoker.types.usage import Usage
from stoker.types.wire import Generate, ImageSpan

TURN = 32  # steps after which others get the event loop, even if a backend has more of them ready


def _wrap(seed: int) -> int:
    """Into 64 bits with sign."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


@dataclass(kw_only=True)
class Generation:
    """One admitted request: `prompts` x `n` choices. `usage` is right at any moment, also after an abort.

    Choice i continues prompt i // n. All go to the engine at once: it computes what prompts share only once.

    images      those in the one prompt of a chat; `seen` keeps their files at hand for the engine
    links       chain links of each prompt
    context     tokens that prompt and output may have together
    domain      who may share the prompts' cache
    routes      where each prompt may go, and what is known of it
    divergence  where the prompt leaves the one before it in its session, if that is known
    model       what it is counted under in `metrics`
    span        its part of a trace; ends with the events
    since       when the request came, by the performance counter
    """

    id: str
    request: ChatRequest | CompletionRequest
    prompts: list[list[int]]
    images: list[ImageSpan]
    seen: list[LoadedImage]
    links: list[bytes]
    routes: list[Route]
    choices: list[Choice]
    constraint: Constraint
    divergence: Divergence | None
    context: int
    domain: str
    text: TextModel
    backend: Backend
    model: str
    metrics: Metrics
    span: Span
    since: float
    _first: float | None = field(default=None, init=False)  # seconds after `since` when the first token came

    @property
    def usage(self) -> Usage:
        """Each prompt counted once, however many choices continue it; cached is what its first choice found there.
        A prompt that gave no token yet counts nothing: it may still be queued."""
        prompt = cached = 0
        for which, ids in enumerate(self.prompts):
            begun = [c for c in self.choices[which * self.request.n :][: self.request.n] if c.begun]
            if begun:
                prompt += len(ids)
                cached += min(len(ids), *(choice.cached for choice in begun))
        return Usage(
            input_uncached=prompt - cached,
            input_cached=cached,
            output_text=sum(choice.output - choice.reasoning for choice in self.choices),
            output_reasoning=sum(choice.reasoning for choice in self.choices),
        )

    @property
    def waited(self) -> int:
        """Engine steps until all choices had begun."""
        return max(choice.waited for choice in self.choices)

    async def events(self) -> AsyncGenerator[Event]:
        """All events: `Begun` with the engine's first news, `Done` last. Closing it early aborts what still runs in the
        engine. However it ends, it is counted once."""
        sources = [self._run(choice) for choice in self.choices]
        source = sources[0] if len(sources) == 1 else merge(sources)
        error = "closed"
        try:
            async with aclosing(source):
                async for event in source:
                    yield event
            error = ""
        except Exception as failure:
            error = word_for(failure)
            raise
        finally:
            self._count(error)
        yield Done(usage=self.usage)

    def _count(self, error: str) -> None:
        usage = self.usage
        self.span.note(
            {
                "gen_ai.usage.input_tokens": usage.input,
                "gen_ai.usage.cache_read.input_tokens": usage.input_cached,
                "gen_ai.usage.output_tokens": usage.output,
                "stoker.prefix.lost_tokens": self.divergence.lost if self.divergence else 0,
            }
        )
        self.span.end(error)
        self.metrics.generated(
            Generated(
                operation="chat" if isinstance(self.request, ChatRequest) else "text_completion",
                model=self.model,
                lane=self.request.lane,
                usage=usage,
                seconds=time.perf_counter() - self.since,
                first=self._first,
                longest=max(choice.output for choice in self.choices),
                error=error,
            )
        )

    async def _run(self, choice: Choice) -> AsyncGenerator[Event]:
        which, turn = divmod(choice.index, self.request.n)
        ids = self.prompts[which]
        if isinstance(self.request, CompletionRequest) and self.request.echo:
            yield TextDelta(index=choice.index, text=await self._echoed(self.request.prompts[which]))
        generate = Generate(
            id=f"{self.id}/{choice.index}",
            prompt_ids=ids,
            sampling=self._sampling(len(ids), turn),
            grammar=self.constraint.grammar,
            reasoning=self.constraint.reasoning,
            lane=self.request.lane,
            domain=self.domain,
            links=self.links[which],
            images=self.images,
            traceparent=self.span.traceparent,
        )
        async with aclosing(self.backend.generate(generate, self.routes[which])) as steps:
            taken = 0
            async for progress in steps:
                events = choice.push(progress)
                if self._first is None:
                    self._first = time.perf_counter() - self.since
                    yield Begun(usage=msgspec.structs.replace(self.usage, output_text=0, output_reasoning=0))
                for event in events:
                    yield event
                if choice.done:
                    return
                taken += 1
                if taken % TURN == 0:
                    await asyncio.sleep(0)
        raise StokerError(ErrorKind.INTERNAL, "engine_protocol", "The engine ended the output without a reason.")

    async def _echoed(self, prompt: str | tuple[int, ...]) -> str:
        return prompt if isinstance(prompt, str) else await asyncio.to_thread(self.text.decode, prompt)

    def _sampling(self, prompt_len: int, turn: int) -> SamplingParams:
        """The client's sampling with what only this side knows: what fits, and a seed per choice. An answer whose form
        is complete ends there, however long it should be."""
        asked = self.request.sampling
        fits = self.context - prompt_len
        free = self.constraint.grammar is None
        return msgspec.structs.replace(
            asked,
            max_tokens=fits if asked.max_tokens is None else min(asked.max_tokens, fits),
            min_tokens=min(asked.min_tokens, fits) if free else 0,
            ignore_eos=asked.ignore_eos and free,
            seed=None if asked.seed is None else _wrap(asked.seed + turn),
        )
