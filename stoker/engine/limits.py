"""What an engine settled on when it started, and which requests can never run under it."""

from __future__ import annotations

import msgspec

from stoker.engine.chain import LINK_BYTES
from stoker.engine.images import ImageLimits
from stoker.types.errors import ErrorKind, StokerError, invalid
from stoker.types.wire import Generate


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What the engine settled on when it started; see `EngineConfig` for the meaning.

    `context` is clamped to the pool. `max_waiting` holds for each lane, so that a full batch line refuses no
    interactive request. `images` is None for a model that takes none.
    """

    vocab_size: int
    context: int
    step_tokens: int
    prefill_tokens: int
    max_running: int
    max_waiting: int
    lane_reserve: tuple[float, float]
    images: ImageLimits | None = None


def refuse_impossible(request: Generate, limits: Limits, context: int, page: int) -> None:
    """Raise StokerError for a request that could never run with `context` tokens in pages of `page`: INVALID, or
    INTERNAL where the mistake is the server's."""
    ids, bias, vocab = request.prompt_ids, request.sampling.logit_bias, limits.vocab_size
    most, given = request.sampling.max_tokens, len(request.output_ids)
    if not ids:
        raise invalid("empty_prompt", "the prompt has no tokens", param="prompt")
    if request.links and len(request.links) != len(ids) // page * LINK_BYTES:
        text = f"{len(request.links)} bytes of chain links do not fit {len(ids)} tokens in pages of {page}"
        raise StokerError(ErrorKind.INTERNAL, "invalid_links", text)
    if most is not None and most < given + 1:
        raise invalid("invalid_max_tokens", f"max_tokens must be at least {given + 1}", param="max_tokens")
    if len(ids) + given + 1 > context:
        raise invalid(
            "context_length_exceeded",
            f"the prompt has {len(ids)} tokens and at least {given + 1} is to be generated, but the context holds"
            f" {context} tokens",
            param="prompt",
        )
    if request.images:
        _check_images(request, limits)
    ids = [*ids, *request.output_ids]
    if min(ids) < 0 or max(ids) >= vocab:
        wrong = next(i for i in ids if not 0 <= i < vocab)
        raise invalid("invalid_token_id", f"token id {wrong} is outside the vocabulary of {vocab}", param="prompt")
    if bias and (min(bias) < 0 or max(bias) >= vocab):
        wrong = next(i for i in bias if not 0 <= i < vocab)
        raise invalid(
            "invalid_logit_bias", f"token id {wrong} is outside the vocabulary of {vocab}", param="logit_bias"
        )


def _check_images(request: Generate, limits: Limits) -> None:
    if limits.images is None:
        raise invalid("unsupported_content", "this model takes no images", param="messages")
    end = 0
    for image in request.images:
        if len(image.digest) != LINK_BYTES or image.start < end or min(image.tokens, image.height, image.width) < 1:
            raise StokerError(ErrorKind.INTERNAL, "invalid_images", f"the image at {image.start} is not described")
        end = image.start + image.tokens
    if end > len(request.prompt_ids):
        raise StokerError(ErrorKind.INTERNAL, "invalid_images", "an image reaches beyond the prompt")
