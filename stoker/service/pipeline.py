"""The one request pipeline: render, count, constrain, then generate. Gateway and batch both call it.

Owns what is decided before a request is let in; from then on it is a `Generation`. Owns no HTTP and no JSON.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple, TypeVar

import msgspec

from stoker.engine.chain import ChainScheme
from stoker.fleet.backend import Backend, Down, Starting
from stoker.fleet.route import Route
from stoker.models.info import ModelInfo
from stoker.models.text.model import TextModel
from stoker.obs.metrics import PROVIDER, Metrics
from stoker.obs.traces import Span, Traces
from stoker.service.constraints import FREE, Constraint, Constraints
from stoker.service.divergence import Divergence
from stoker.service.generation import Generation
from stoker.service.grammar_trial import GrammarTrial
from stoker.service.images import ImageStore, LoadedImage
from stoker.service.reading import Reading
from stoker.service.sessions import Sessions, cache_domain
from stoker.types.chat import ChatRequest, CompletionRequest
from stoker.types.errors import ErrorKind, StokerError, invalid
from stoker.types.wire import ImageSpan, Ready

T = TypeVar("T")

LONG_THREADS = 2
QUICK_SIZE = 16 * 1024  # characters or ids
LONG_TOKEN = 16  # bytes; hardly any text has so few tokens for its length


class _Prompts(NamedTuple):
    """The prompts of one request: ids, images in them, chain links, and where its session's last prompt was left, if
    that is known."""

    ids: list[list[int]]
    images: list[ImageSpan]
    links: list[bytes]
    divergence: Divergence | None


class Service:
    """One model behind one backend. `name` is what clients call the model. Lives in one event loop.

    `trial` tries out grammars; without one no output can be constrained. `scheme` is how the backend's engines make
    their hash chains; without it they hash all prompts themselves. `images` gets those of requests, and gives the
    backend's engines their pixels; without it none are taken.
    """

    def __init__(
        self,
        text: TextModel,
        info: ModelInfo,
        backend: Backend,
        *,
        name: str | None = None,
        trial: GrammarTrial | None = None,
        scheme: ChainScheme | None = None,
        images: ImageStore | None = None,
        metrics: Metrics | None = None,
        traces: Traces | None = None,
    ) -> None:
        self.name = name or info.name
        self.info = info
        self.backend = backend
        self._text = text
        self._images = images
        self._reading = Reading(text)
        self._constraints = Constraints(text, trial)
        self._sessions = Sessions(scheme)
        self._metrics = metrics or Metrics()
        self._traces = traces or Traces()
        self._quick = ThreadPoolExecutor(1, thread_name_prefix="text-quick")
        self._long = ThreadPoolExecutor(LONG_THREADS, thread_name_prefix="text-long")

    def close(self) -> None:
        """Let the text threads go. Requests still waiting for one are cancelled."""
        for threads in (self._quick, self._long):
            threads.shutdown(wait=False, cancel_futures=True)

    @property
    def context(self) -> int:
        """Longest prompt + output in tokens: the engine's, or the model's own until the engine is ready."""
        state = self.backend.state
        return state.context if isinstance(state, Ready) else self.info.context

    async def start(
        self,
        request: ChatRequest | CompletionRequest,
        *,
        tenant: str,
        request_id: str,
        zone: str | None = None,
        remember: bool = True,
        traceparent: str = "",
    ) -> Generation:
        """Render, count and check a request; nothing is generated before its events are read.

        `tenant` comes from the caller's key and decides who may share this prompt's cache. With a `zone` it is served
        there or not at all. Nothing of the prompt is kept for its next one here unless `remember` is set. Raises
        StokerError.
        """
        operation = "chat" if isinstance(request, ChatRequest) else "text_completion"
        span = self._traces.span(
            f"{operation} {self.name}",
            traceparent,
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": PROVIDER,
                "gen_ai.request.model": self.name,
                "stoker.lane": request.lane.name.lower(),
            },
        )
        with span.open(end=False):
            return await self._admit(request, tenant, request_id, zone, span, remember=remember)

    async def _admit(
        self,
        request: ChatRequest | CompletionRequest,
        tenant: str,
        request_id: str,
        zone: str | None,
        span: Span,
        *,
        remember: bool,
    ) -> Generation:
        since = time.perf_counter()
        self._check_ready()
        with self._traces.span("render", span.traceparent).open():
            seen = await self._see(request, remember=remember)
            prompts, images, links, divergence = await self._in_thread(
                lambda: self._read(request, seen, tenant, remember=remember), _size(request)
            )
        if divergence is not None:
            self._metrics.turn(self.name, divergence.lost)
        constraint = await self._constrain(request, prompts[0]) if isinstance(request, ChatRequest) else FREE
        choices = [
            self._reading.choice(request, index, prompts[index // request.n])
            for index in range(len(prompts) * request.n)
        ]
        return Generation(
            id=request_id,
            request=request,
            prompts=prompts,
            images=images,
            seen=seen,
            links=links,
            routes=[
                Route(tenant=tenant, session=request.session, zone=zone, blocks=self._sessions.blocks(known))
                for known in links
            ],
            choices=choices,
            constraint=constraint,
            divergence=divergence,
            context=self.context,
            domain=cache_domain(tenant),
            text=self._text,
            backend=self.backend,
            model=self.name,
            metrics=self._metrics,
            span=span,
            since=since,
        )

    async def tokenize(self, request: ChatRequest | CompletionRequest, *, owner: str | None = None) -> list[list[int]]:
        """The prompt of a chat, or each prompt of a completion, as token ids; in a thread of the text pool. What is
        remembered of its texts is `owner`'s, a tenant."""
        seen = await self._see(request, remember=owner is not None)
        return (await self._in_thread(lambda: self._encode(request, seen, owner), _size(request)))[0]

    async def decode(self, ids: tuple[int, ...]) -> str:
        """Token ids as text, special tokens included. Raises StokerError for ids outside the vocabulary."""
        self._check_ids(ids, "tokens")
        return await self._in_thread(lambda: self._text.decode(ids), len(ids))

    async def _constrain(self, request: ChatRequest, prompt: Sequence[int]) -> Constraint:
        draft = await self._in_thread(lambda: self._constraints.draft(request, prompt), _size(request))
        return await self._constraints.settle(draft)

    async def _in_thread(self, work: Callable[[], T], size: int) -> T:
        """Short prompts have a thread of their own: they never wait for long ones."""
        threads = self._quick if size <= QUICK_SIZE else self._long
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def _check_ready(self) -> None:
        match self.backend.state:
            case Ready():
                return
            case Starting(stage=stage, fraction=fraction):
                message = f"The engine is starting: {stage}, {fraction:.0%}."
            case Down(reason=reason):
                message = f"The engine is down: {reason}"
        raise StokerError(ErrorKind.UNAVAILABLE, "engine_unavailable", message, retry_after=2.0)

    async def _see(self, request: ChatRequest | CompletionRequest, *, remember: bool) -> list[LoadedImage]:
        """The images of a request, in their order. Raises StokerError for those that cannot be used."""
        messages = request.messages if isinstance(request, ChatRequest) else ()
        found = [image for message in messages for image in message.images]
        if not found:
            return []
        if self._images is None or self._text.processor is None:
            text = f"'{found[0].param}' is an image; the model '{self.name}' reads only text."
            raise invalid("unsupported_content", text, param=found[0].param)
        return await self._images.load(found, self._text.processor, remember=remember)

    def _read(
        self,
        request: ChatRequest | CompletionRequest,
        seen: Sequence[LoadedImage],
        tenant: str,
        *,
        remember: bool,
    ) -> _Prompts:
        """Render, count and hash; what a session's last prompt shares with this one is not hashed again."""
        prompts, images = self._encode(request, seen, tenant if remember else None)
        for position, ids in enumerate(prompts):
            self._check_length(len(ids), at_least=False, param=_param(request, position))
        if remember and request.session is not None and len(prompts) == 1:
            divergence, links = self._sessions.observe(tenant, request.session, prompts[0], images)
            return _Prompts(prompts, images, [links], divergence)
        return _Prompts(prompts, images, [self._sessions.links(tenant, ids, images) for ids in prompts], None)

    def _encode(
        self, request: ChatRequest | CompletionRequest, seen: Sequence[LoadedImage], owner: str | None
    ) -> tuple[list[list[int]], list[ImageSpan]]:
        """The prompts, and the images in the one prompt of a chat."""
        for token in request.sampling.logit_bias:
            self._check_ids((token,), "logit_bias")
        if isinstance(request, ChatRequest):
            self._check_chars(_size(request), "messages")
            ids = self._text.render(request, owner=owner)
            if not seen:
                return [ids], []
            ids, starts = self._text.place(ids, [image.tokens for image in seen])
            return [ids], [image.at(start) for image, start in zip(seen, starts, strict=True)]
        return [self._encode_prompt(request, position) for position in range(len(request.prompts))], []

    def _encode_prompt(self, request: CompletionRequest, position: int) -> list[int]:
        prompt = request.prompts[position]
        param = _param(request, position)
        if isinstance(prompt, str):
            self._check_chars(len(prompt), param)
            ids = self._text.encode(prompt)
        else:
            self._check_length(len(prompt), at_least=False, param=param)
            self._check_ids(prompt, param)
            ids = list(prompt)
        if not ids:
            raise invalid("empty_prompt", "The prompt has no tokens.", param=param)
        return ids

    def _check_ids(self, ids: tuple[int, ...], param: str) -> None:
        if ids and not (min(ids) >= 0 and max(ids) < self._text.vocab_size):
            raise invalid(
                "invalid_value",
                f"'{param}' has a token id outside the vocabulary of {self._text.vocab_size}.",
                param=param,
            )

    def _check_chars(self, chars: int, param: str) -> None:
        """Refuse before tokenizing what cannot fit even if every token were the longest there is."""
        if chars > LONG_TOKEN * self.context:
            self._check_length(chars // self._longest_token, at_least=True, param=param)

    @cached_property
    def _longest_token(self) -> int:
        """In bytes. Walks the vocabulary, so it is looked up only for the first prompt far too long to be sensible."""
        return max(len(self._text.token_bytes(token)) for token in range(self._text.vocab_size))

    def _check_length(self, tokens: int, *, at_least: bool, param: str) -> None:
        if tokens >= self.context:
            raise invalid(
                "context_length_exceeded",
                f"The prompt has {'at least ' if at_least else ''}{tokens} tokens; the context is {self.context} "
                "tokens and must hold at least one token of output too.",
                param=param,
            )


def _size(request: ChatRequest | CompletionRequest) -> int:
    """Characters and ids that are to become the prompt: how much work it is, and a bound on how long it can be."""
    if isinstance(request, CompletionRequest):
        return sum(map(len, request.prompts))
    size = sum(len(tool.description or "") + len(msgspec.json.encode(tool.parameters)) for tool in request.tools)
    for message in request.messages:
        size += len(message.text or "") + len(message.reasoning or "")
        size += sum(len(call.arguments) for call in message.tool_calls)
    return size


def _param(request: ChatRequest | CompletionRequest, position: int) -> str:
    if isinstance(request, ChatRequest):
        return "messages"
    return "prompt" if len(request.prompts) == 1 else f"prompt[{position}]"
