"""POST /v1/completions: body -> CompletionRequest, events -> text_completion objects (streamed or whole)."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

import msgspec

from stoker.dialects.encoder import JSON, Head, finish_name
from stoker.dialects.fields import MAX_NAME_CHARS, Fields, JsonObject, unsupported, wrong_type
from stoker.dialects.openai_common import (
    MAX_CHOICES,
    UsageJson,
    choices_error,
    read_lane,
    read_session,
    read_stream,
    refuse_unsupported,
)
from stoker.dialects.openai_errors import encode_error
from stoker.dialects.sampling import read_logprob_count, read_max_tokens, read_sampling, read_stop, read_token_ids
from stoker.types.chat import Begun, ChoiceDone, CompletionRequest, Done, Event, TextDelta, TokenLogprob
from stoker.types.errors import StokerError, invalid
from stoker.types.usage import Usage

MAX_PROMPTS = 128
MAX_TOTAL_CHOICES = 128
MAX_PROMPT_IDS = 1 << 22
DEFAULT_MAX_TOKENS = 16  # OpenAI's, and unlike chat's not "as many as fit"

_REFUSED = {
    "suffix": "filling in the middle",
    "response_format": "constrained output of raw prompts",
    "guided_json": "constrained output of raw prompts",
    "guided_regex": "constrained output of raw prompts",
    "guided_choice": "constrained output of raw prompts",
    "guided_grammar": "constrained output of raw prompts",
    "structured_outputs": "constrained output of raw prompts",
}


def decode_completion(body: JsonObject, *, session: str | None) -> CompletionRequest:
    """Check a body and read it. `session` is what the request's headers say. Raises StokerError (INVALID)."""
    fields = Fields(body)
    refuse_unsupported(fields, _REFUSED)
    stream, include_usage = read_stream(fields)
    lane, tier = read_lane(fields)
    n = fields.integer("n", 1, MAX_CHOICES) or 1
    best_of = fields.integer("best_of", 1, MAX_CHOICES)
    if best_of is not None and best_of != n:
        raise unsupported("best_of", "it must equal 'n'")
    model = fields.required_text("model", longest=MAX_NAME_CHARS)
    prompts = _read_prompts(fields)
    if len(prompts) * n > MAX_TOTAL_CHOICES:
        raise choices_error(len(prompts) * n, MAX_TOTAL_CHOICES, "n")
    echo = fields.boolean("echo")
    logprobs = read_logprob_count(fields, "logprobs")
    if echo and logprobs is not None:
        raise unsupported("echo", "log-probabilities of the prompt are not computed, so not together with 'logprobs'")
    max_tokens = read_max_tokens(fields, "max_tokens") or DEFAULT_MAX_TOKENS
    return CompletionRequest(
        model=model,
        prompts=prompts,
        echo=echo,
        sampling=read_sampling(fields, logprobs=logprobs, max_tokens=max_tokens),
        n=n,
        stop=read_stop(fields),
        stream=stream,
        include_usage=include_usage,
        lane=lane,
        service_tier=tier,
        session=read_session(fields, session),
    )


def _read_prompts(fields: Fields) -> tuple[str | tuple[int, ...], ...]:
    value = fields.get("prompt")
    if value is None:
        raise fields.missing("prompt")
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong_type("prompt", "a string, token ids, or an array of either", value)
    if not value:
        raise invalid("empty_array", "'prompt' is empty.", param="prompt")
    if isinstance(value[0], int):
        return (_read_ids(value, "prompt"),)
    return tuple(
        item if isinstance(item, str) else _read_ids(item, f"prompt[{i}]")
        for i, item in enumerate(fields.array("prompt", longest=MAX_PROMPTS) or [])
    )


def _read_ids(value: object, param: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise wrong_type(param, "a string or an array of token ids", value)
    if not value:
        raise invalid("empty_array", f"'{param}' is empty.", param=param)
    if len(value) > MAX_PROMPT_IDS:
        raise invalid("array_above_max_length", f"'{param}' has more than {MAX_PROMPT_IDS} items.", param=param)
    return read_token_ids(value, param)


class _Logprobs(msgspec.Struct, frozen=True):
    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class _Choice(msgspec.Struct, frozen=True):
    index: int
    text: str
    logprobs: _Logprobs | None
    finish_reason: str | None


class _Response(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str
    choices: list[_Choice]
    usage: UsageJson | msgspec.UnsetType | None = msgspec.UNSET
    service_tier: str | msgspec.UnsetType = msgspec.UNSET


def _token_name(text: bytes) -> str:
    """A token as text; a piece of a character in the form OpenAI uses for it."""
    try:
        return text.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text)


class _Offsets:
    """Where each token starts in the text of its choice, in characters."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._chars = 0

    def logprobs(self, tokens: Sequence[TokenLogprob]) -> _Logprobs:
        offsets: list[int] = []
        for token in tokens:
            offsets.append(self._chars)
            self._chars += len(self._decoder.decode(token.text))
        return _Logprobs(
            [_token_name(token.text) for token in tokens],
            [token.logprob for token in tokens],
            [{_token_name(text): logprob for _, text, logprob in token.top} for token in tokens],
            offsets,
        )


def _response(
    request: CompletionRequest,
    head: Head,
    choices: list[_Choice],
    usage: UsageJson | msgspec.UnsetType | None,
) -> bytes:
    return JSON.encode(
        _Response(
            id=head.id,
            object="text_completion",
            created=head.created,
            model=head.model,
            system_fingerprint=head.fingerprint,
            choices=choices,
            usage=usage,
            service_tier=msgspec.UNSET if request.service_tier is None else request.service_tier,
        )
    )


def _not_raw(event: Event) -> TypeError:
    return TypeError(f"a raw completion is text and nothing else, not {type(event).__name__}")


class CompletionStream:
    """One streamed answer. Usage comes last and only if asked for."""

    end = b"[DONE]"
    named = False

    def __init__(self, request: CompletionRequest, head: Head) -> None:
        self._request = request
        self._head = head
        self._offsets = [_Offsets() for _ in range(len(request.prompts) * request.n)]

    def push(self, event: Event) -> Sequence[bytes]:
        match event:
            case Begun():
                return ()
            case TextDelta(index=index):
                logprobs = self._offsets[index].logprobs(event.logprobs) if event.logprobs else None
                return self._chunk(_Choice(index, event.text, logprobs, None))
            case ChoiceDone():
                return self._chunk(_Choice(event.index, "", None, finish_name(event.reason)))
            case Done():
                if not self._request.include_usage:
                    return ()
                return (_response(self._request, self._head, [], UsageJson.of(event.usage)),)
            case _:
                raise _not_raw(event)

    def error(self, error: StokerError) -> bytes:
        return encode_error(error)

    def _chunk(self, choice: _Choice) -> Sequence[bytes]:
        usage = None if self._request.include_usage else msgspec.UNSET
        return (_response(self._request, self._head, [choice], usage),)


class CompletionWhole:
    """One answer in one object; choices of prompt p are p*n .. p*n + n - 1."""

    def __init__(self, request: CompletionRequest, head: Head) -> None:
        self._request = request
        self._head = head
        count = len(request.prompts) * request.n
        self._texts: list[list[str]] = [[] for _ in range(count)]
        self._logprobs: list[list[TokenLogprob]] = [[] for _ in range(count)]
        self._reasons = [""] * count
        self._usage = Usage()

    def push(self, event: Event) -> None:
        match event:
            case Begun():
                pass
            case TextDelta():
                self._texts[event.index].append(event.text)
                self._logprobs[event.index].extend(event.logprobs)
            case ChoiceDone():
                self._reasons[event.index] = finish_name(event.reason)
            case Done():
                self._usage = event.usage
            case _:
                raise _not_raw(event)

    def finish(self) -> bytes:
        asked = self._request.sampling.logprobs is not None
        choices = [
            _Choice(index, "".join(texts), _Offsets().logprobs(logprobs) if asked else None, reason)
            for index, (texts, logprobs, reason) in enumerate(
                zip(self._texts, self._logprobs, self._reasons, strict=True)
            )
        ]
        return _response(self._request, self._head, choices, UsageJson.of(self._usage))
