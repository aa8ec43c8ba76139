"""llguidance over a model's vocabulary: grammars made into matchers, with bounds on what one may cost.

Owns the bounds and the mapping of tokens. Does not own what a grammar says (`grammar.py`) nor when it holds (the
engine does). Needs no torch, so the worker that tries out a client's grammar uses the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from stoker.models.text.model import TextModel

# Fuel is counted in steps of work, not in time: the same grammar fails or passes on every machine.
LIMITS = LLParserLimits(
    max_items_in_row=2000,
    step_max_items=20_000,
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
_WALKS, _STEPS = 2, 100
_ENOUGH = 0.5  # seconds of the processor after which a trial ends
_SLOW = 0.01  # seconds of the processor for a step; a sane grammar takes a tenth of it


class GrammarError(ValueError):
    """The grammar is wrong or too complex; the message is for its author."""


class Guide:
    """Matchers over one vocabulary. Control tokens and end tokens are never part of a text: a grammar names them by id,
    `<[7]>`. Thread-safe.

    words    int32 words of a mask: token i is bit i % 32 of word i // 32
    control  text of a control token -> its id
    """

    def __init__(self, text: TextModel) -> None:
        """Raises GrammarError if the model has no end token: an answer that is complete could not end."""
        if not text.eos_ids:
            raise GrammarError("the model has no end token, so its output cannot be constrained")
        self.text = text
        self.control = control_marks(text)
        self._vocabulary = _Vocabulary(text)
        self.tokenizer = LLTokenizer(TokenizerWrapper(self._vocabulary), eos_token=sorted(text.eos_ids))
        self.words = -(-self.tokenizer.vocab_size // 32)

    def encode(self, text: str) -> Sequence[int]:
        """Ordinary text in the middle of others."""
        return self._vocabulary(text.encode("utf-8"))

    def compile(self, grammar: str) -> LLMatcher:
        """A matcher at the beginning of `grammar`. Raises GrammarError."""
        matcher = LLMatcher(self.tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarError(first_line(matcher.get_error()))
        return matcher

    def trial(self, grammar: str) -> None:
        """Compile `grammar` and follow it for a while as a model without taste would, always the same way. Raises
        GrammarError if it is wrong, allows nothing, or takes much longer than a step of a model."""
        matcher = self.compile(grammar)
        draw = random.Random(0)  # noqa: S311 - no secret
        began = time.process_time()
        steps = 0
        for _ in range(_WALKS):
            walk = matcher.deep_copy()
            for _ in range(_STEPS):
                steps += 1
                mask = np.frombuffer(walk.compute_bitmask(), np.uint8)
                if walk.is_error():
                    raise GrammarError(_reason(walk))
                took = time.process_time() - began
                if took > _ENOUGH and took / steps < _SLOW:
                    return
                if took > _ENOUGH:
                    raise GrammarError("it is too complex: finding what may come next takes too long")
                allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
                index = int(allowed[draw.randrange(len(allowed))])
                if index in self.text.eos_ids:
                    break
                if not walk.consume_token(index):
                    raise GrammarError(_reason(walk))


def control_marks(text: TextModel) -> dict[str, int]:
    """Text of a control token -> its id."""
    return {text.token_bytes(index).decode("utf-8"): index for index in sorted(text.control_ids)}


def first_line(error: str) -> str:
    """The reason in an error of llguidance, without the state that it dumps behind it."""
    return error.strip().split("\n", 1)[0][:500]


def _reason(matcher: LLMatcher) -> str:
    reason = first_line(matcher.get_error())
    return "it comes to a place where no text is allowed" if reason.startswith("NoExtension") else reason


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    bos_token_id = None

    def __init__(self, text: TextModel) -> None:
        self._encode = text.vocabulary.encode_parts
        self._before = min(text.control_ids)  # whatever stands before it, a text is not the first
        self.eos_token_id = min(text.eos_ids)
        self.tokens = [text.token_bytes(index) for index in range(text.vocab_size)]
        self.special_token_ids = sorted(text.control_ids | text.eos_ids)

    def __call__(self, text: bytes) -> Sequence[int]:
        return self._encode([self._before, text.decode("utf-8")])[1:] if text else []
