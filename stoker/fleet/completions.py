"""vLLM's completions route in token ids: a request as it takes it, its events as `Progress`. Pure: no connection."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.types.errors import ErrorKind, LostError, StokerError, invalid
from stoker.types.wire import Generate, Progress, SampledToken


def body_of(request: Generate, model: str) -> dict[str, Any]:
    """A request as vLLM's completions route takes it."""
    sampling = request.sampling
    left = None if sampling.max_tokens is None else sampling.max_tokens - len(request.output_ids)
    body: dict[str, Any] = {
        "model": model,
        "prompt": [*request.prompt_ids, *request.output_ids],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "min_tokens": max(0, sampling.min_tokens - len(request.output_ids)),
        "ignore_eos": sampling.ignore_eos,
        "stop_token_ids": list(sampling.stop_ids),
        "max_tokens": left,
    }
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.logit_bias:
        body["logit_bias"] = {str(token): bias for token, bias in sampling.logit_bias.items()}
    if sampling.logprobs is not None:
        body |= {"logprobs": sampling.logprobs, "return_tokens_as_token_ids": True}
    return body


class _Logprobs(msgspec.Struct):
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float] | None] | None = None


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _Details | None = None


class _Event(msgspec.Struct):
    """What is read of an event; `error` comes instead of everything else."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: dict[str, Any] | None = None


class Reply:
    """The events of one stream as `Progress`. The end waits for the usage, which comes behind it."""

    def __init__(self, request: Generate, eos_ids: tuple[int, ...]) -> None:
        self._id = request.id
        self._ends = frozenset((*eos_ids, *request.sampling.stop_ids))
        self._logprobs = request.sampling.logprobs
        self._output = len(request.output_ids)
        self._finish: str | None = None
        self._decoder = msgspec.json.Decoder(_Event)

    def read(self, line: bytes) -> Progress | None:
        """Raises ValueError or MsgspecError for an event that is none, StokerError for one that is an error."""
        if not line.startswith(b"data:"):
            return None
        data = line[5:].strip()
        if data == b"[DONE]":
            return self._end(None)
        event = self._decoder.decode(data)
        if event.error is not None:
            raise refusal(500, str(event.error.get("message")))
        if not event.choices:
            return self._end(event.usage) if self._finish is not None else None
        choice = event.choices[0]
        self._finish = choice.finish_reason or self._finish
        tokens = self._tokens(choice)
        self._output += len(tokens)
        if self._finish == "stop" and tokens and tokens[-1].id in self._ends:
            tokens.pop()
        return Progress(id=self._id, tokens=tokens, output=self._output) if tokens else None

    def _tokens(self, choice: _Choice) -> list[SampledToken]:
        ids, logprobs = choice.token_ids or [], choice.logprobs
        if self._logprobs is None or logprobs is None:
            return [SampledToken(token) for token in ids]
        tops = logprobs.top_logprobs or [None] * len(ids)
        return [
            SampledToken(token, logprob, _top(top, self._logprobs))
            for token, logprob, top in zip(ids, logprobs.token_logprobs, tops, strict=True)
        ]

    def _end(self, usage: _Usage | None) -> Progress:
        if self._finish is None:
            raise ValueError("the stream ended without a finish_reason")
        reason = "length" if self._finish == "length" else "abort" if self._finish == "abort" else "stop"
        details = usage.prompt_tokens_details if usage else None
        cached = (details.cached_tokens or 0) if details else 0
        return Progress(id=self._id, cached=cached, output=self._output, finish=reason)


def _top(top: dict[str, float] | None, count: int) -> list[tuple[int, float]]:
    """`{"token_id:7": -0.1}` -> [(7, -0.1)], the likeliest first."""
    found = [(int(name.removeprefix("token_id:")), value) for name, value in (top or {}).items()]
    return sorted(found, key=lambda item: -item[1])[:count]


def refusal(status: int, text: str) -> StokerError:
    """What an answer with another status than 200 means to the client."""
    said = " ".join(text.split())[:300]
    if status in (429, 503):
        return StokerError(ErrorKind.CAPACITY, "engine_full", f"The server is full: {said}", retry_after=2.0)
    if status in (400, 404, 422):
        return invalid("refused_by_server", f"The server behind this model refuses the request: {said}")
    return LostError("engine_crashed", f"The server behind this model failed ({status}).", suspect=True)
