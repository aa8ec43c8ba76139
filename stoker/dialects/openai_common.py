"""What OpenAI's generation routes share: sampling, lanes, sessions, refused features, usage."""

from __future__ import annotations

from typing import Any

import msgspec

from stoker.dialects.fields import MAX_NAME_CHARS, Fields, unsupported, wrong_type
from stoker.types.chat import FinishReason
from stoker.types.errors import StokerError, invalid
from stoker.types.lane import Lane
from stoker.types.sampling import MAX_TOP_LOGPROBS, SamplingParams
from stoker.types.usage import Usage

MAX_CHOICES = 16
MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 64
MAX_BIASES = 1024
MAX_TOKEN_ID = (1 << 31) - 1
MAX_TOP_K = 1 << 20

# service_tier -> (lane, what the response says was used)
_TIERS = {
    "auto": (Lane.STANDARD, "default"),
    "default": (Lane.STANDARD, "default"),
    "priority": (Lane.INTERACTIVE, "priority"),
    "flex": (Lane.BATCH, "flex"),
    "batch": (Lane.BATCH, "batch"),
}

_REFUSED = {
    "prompt_logprobs": "log-probabilities of the prompt",
    "use_beam_search": "beam search",
}


def refuse_unsupported(fields: Fields, refused: dict[str, str]) -> None:
    """Raise for the first known but unserved parameter that asks for something (not null, false or empty)."""
    for table in (_REFUSED, refused):
        for name, reason in table.items():
            if fields.get(name):
                raise unsupported(name, reason)


def read_sampling(fields: Fields, *, logprobs: int | None, max_tokens: int | None) -> SamplingParams:
    """The sampling parameters with OpenAI's ranges; vLLM's names for what OpenAI lacks."""
    defaults = SamplingParams()

    def number(name: str, low: float, high: float, default: float) -> float:
        value = fields.number(name, low, high)
        return default if value is None else value

    top_k = fields.integer("top_k", -1, MAX_TOP_K) or 0
    repetition = number("repetition_penalty", 0.0, 2.0, defaults.repetition_penalty)
    if repetition == 0.0:
        raise invalid("decimal_below_min_value", "'repetition_penalty' must be above 0.", param="repetition_penalty")
    return SamplingParams(
        temperature=number("temperature", 0.0, 2.0, defaults.temperature),
        top_p=max(number("top_p", 0.0, 1.0, defaults.top_p), 1e-9),  # OpenAI allows 0: only the likeliest token
        top_k=max(top_k, 0),
        min_p=number("min_p", 0.0, 1.0, defaults.min_p),
        presence_penalty=number("presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=number("frequency_penalty", -2.0, 2.0, 0.0),
        repetition_penalty=repetition,
        logit_bias=_read_bias(fields),
        seed=fields.integer("seed", -(1 << 63), (1 << 63) - 1),
        logprobs=logprobs,
        max_tokens=max_tokens,
        min_tokens=_read_min_tokens(fields, max_tokens),
        stop_ids=_read_stop_ids(fields),
        ignore_eos=fields.boolean("ignore_eos"),
    )


def read_max_tokens(fields: Fields, *names: str) -> int | None:
    """The first of `names` that is given. Any size is taken: what fits is known only after counting the prompt."""
    for name in names:
        value = fields.integer(name, 1, 1 << 63)
        if value is not None:
            return min(value, MAX_TOKEN_ID)
    return None


def _read_min_tokens(fields: Fields, max_tokens: int | None) -> int:
    value = fields.integer("min_tokens", 0, MAX_TOKEN_ID if max_tokens is None else max_tokens)
    return value or 0


def _read_bias(fields: Fields) -> dict[int, float]:
    given = fields.object("logit_bias")
    if given is None:
        return {}
    if len(given.data) > MAX_BIASES:
        raise invalid("array_above_max_length", f"'logit_bias' has more than {MAX_BIASES} entries.", param="logit_bias")
    biases: dict[int, float] = {}
    for key in given.data:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise invalid("invalid_value", "The keys of 'logit_bias' must be token ids.", param="logit_bias")
        value = given.number(key, -100.0, 100.0)
        if value is None:
            raise wrong_type(given.param(key), "a number", None)
        biases[int(key)] = value
    return biases


def _read_stop_ids(fields: Fields) -> tuple[int, ...]:
    given = fields.array("stop_token_ids", longest=MAX_STOP_IDS)
    return () if given is None else read_token_ids(given, "stop_token_ids")


def read_token_ids(values: list[Any], param: str) -> tuple[int, ...]:
    """Plain non-negative integers; whether the vocabulary has them is the service's question."""
    for value in values:
        if type(value) is not int:
            raise wrong_type(param, "an array of token ids", value)
        if not 0 <= value <= MAX_TOKEN_ID:
            raise invalid("invalid_value", f"'{param}' has a token id outside the vocabulary.", param=param)
    return tuple(values)


def read_stop(fields: Fields) -> tuple[str, ...]:
    """`stop`: absent, one string, or several. Empty strings stop nothing and are dropped."""
    value = fields.get("stop")
    if value is None:
        return ()
    if not isinstance(value, str | list):
        raise wrong_type("stop", "a string or an array of strings", value)
    stops: list[Any] = [value] if isinstance(value, str) else fields.array("stop", longest=MAX_STOPS) or []
    for position, stop in enumerate(stops):
        if not isinstance(stop, str):
            raise wrong_type(f"stop[{position}]", "a string", stop)
        if len(stop) > MAX_STOP_CHARS:
            raise invalid(
                "string_above_max_length", f"A stop string has more than {MAX_STOP_CHARS} characters.", param="stop"
            )
    return tuple(stop for stop in stops if stop)


def read_stream(fields: Fields) -> tuple[bool, bool]:
    """(stream, stream_options.include_usage)"""
    stream = fields.boolean("stream")
    options = fields.object("stream_options")
    if options is None:
        return stream, False
    if not stream:
        raise invalid("invalid_value", "'stream_options' needs 'stream': true.", param="stream_options")
    return stream, options.boolean("include_usage")


def read_lane(fields: Fields) -> tuple[Lane, str | None]:
    """(lane, the tier to name in the response; None when the client named none)"""
    tier = fields.choice("service_tier", _TIERS)
    return (Lane.STANDARD, None) if tier is None else _TIERS[tier]


def read_session(fields: Fields, session: str | None) -> str | None:
    """`session` from the headers goes first; else the body's `prompt_cache_key`."""
    key = fields.text("prompt_cache_key", longest=MAX_NAME_CHARS)
    return session or key or None


def read_logprob_count(fields: Fields, name: str) -> int | None:
    return fields.integer(name, 0, MAX_TOP_LOGPROBS)


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class _CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int


class UsageJson(msgspec.Struct, frozen=True):
    """OpenAI counts inclusively: cached tokens are part of the prompt's, reasoning part of the completion's."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: _PromptDetails
    completion_tokens_details: _CompletionDetails

    @classmethod
    def of(cls, usage: Usage) -> UsageJson:
        return cls(
            usage.input,
            usage.output,
            usage.total,
            _PromptDetails(usage.input_cached),
            _CompletionDetails(usage.output_reasoning),
        )


def finish_name(reason: FinishReason) -> str:
    """OpenAI's word for why a choice ended. Choices that failed never get here: their request does."""
    if reason in ("abort", "error"):
        raise ValueError(f"a choice that ended by {reason} has no finish_reason")
    return reason


def choices_error(count: int, limit: int, param: str) -> StokerError:
    return invalid("integer_above_max_value", f"The request asks for {count} choices, above {limit}.", param=param)
