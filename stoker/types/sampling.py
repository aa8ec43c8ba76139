"""How the next token is chosen. OpenAI's parameters plus top_k, min_p and repetition_penalty."""

from __future__ import annotations

import msgspec

MAX_TOP_LOGPROBS = 20


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Validated by the dialect before it gets here; the engine trusts the ranges given below.

    temperature 0..2 (0 is greedy) · top_p (0, 1] · top_k 0 (off) or more · min_p 0..1 · presence_penalty and
    frequency_penalty -2..2 over generated tokens · repetition_penalty (0, 2] over prompt and generated tokens ·
    logit_bias token id -> -100..100 · logprobs None (off) or the number of alternatives 0..20 ·
    max_tokens None (up to the context) · stop_ids end the output and are not part of it ·
    ignore_eos keeps generating past the model's own end tokens (benchmarks).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    logprobs: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
