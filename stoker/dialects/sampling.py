"""How tokens are chosen and where output ends: OpenAI's names and ranges, and vLLM's for what OpenAI lacks.

Anthropic's few have the same names.
"""

from __future__ import annotations

from typing import Any

from stoker.dialects.fields import Fields, wrong_type
from stoker.types.errors import invalid
from stoker.types.sampling import MAX_TOP_LOGPROBS, SamplingParams

MAX_STOPS = 16
MAX_STOP_CHARS = 1024
MAX_STOP_IDS = 64
MAX_BIASES = 1024
MAX_TOKEN_ID = (1 << 31) - 1
MAX_TOP_K = 1 << 20


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


def read_logprob_count(fields: Fields, name: str) -> int | None:
    return fields.integer(name, 0, MAX_TOP_LOGPROBS)
