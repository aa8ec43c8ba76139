"""What OpenAI's generation routes share: lanes, sessions, streams, refused features, usage."""

from __future__ import annotations

import msgspec

from stoker.dialects.fields import MAX_NAME_CHARS, Fields, unsupported
from stoker.types.errors import StokerError, invalid
from stoker.types.lane import Lane
from stoker.types.usage import Usage

MAX_CHOICES = 16

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


def choices_error(count: int, limit: int, param: str) -> StokerError:
    return invalid("integer_above_max_value", f"The request asks for {count} choices, above {limit}.", param=param)
