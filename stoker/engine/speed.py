"""How fast this engine is, measured from its steps, and how long the next one will take. Pure arithmetic.

A step costs what its prefill tokens take plus what a batch of decodes takes, whatever its size. Flaws: the cost of a
token grows with the context before it, so a rate lags behind while a long prompt is read; and decodes are taken to cost
the same whether one or sixty share the step. How long an image takes is not measured: it grows with the square of its
size, and a step that encodes any says nothing of the rest.
"""

from __future__ import annotations

UNKNOWN_SECONDS = 30.0  # predicted for what was never measured: the first steps of a large model take long
TICK = 1e-9  # seconds; less is a clock that did not move
LEAST = 0.1  # share of a mixed step that prefill takes, however quick the step was
FADE = 0.9  # weight of all that was measured before, with each new step


class Speed:
    """prefill_rate    tokens per second, weighted by tokens over recent steps; 0 before the first
    decode_seconds  of a step that only decodes, a running mean; 0 before the first
    """

    def __init__(self) -> None:
        self.decode_seconds = 0.0
        self._tokens = 0.0
        self._seconds = 0.0

    @property
    def prefill_rate(self) -> float:
        return self._tokens / self._seconds if self._seconds else 0.0

    def measured(self, prefill: int, decode: int, seconds: float, *, images: bool = False) -> None:
        """A step of so many tokens took `seconds`; `images` says whether it encoded any."""
        if seconds < TICK or images:
            return
        if not prefill:
            old = self.decode_seconds
            self.decode_seconds = FADE * old + (1 - FADE) * seconds if old else seconds
            return
        own = max(seconds - self.decode_seconds, LEAST * seconds) if decode else seconds
        self._tokens = FADE * self._tokens + prefill
        self._seconds = FADE * self._seconds + own

    def predict(self, prefill: int, decode: int, *, images: bool = False) -> float:
        """Seconds that a step of so many tokens will take."""
        rate = self.prefill_rate
        seconds = UNKNOWN_SECONDS if images else 0.0
        if prefill:
            seconds += prefill / rate if rate else UNKNOWN_SECONDS
        if decode:
            seconds += self.decode_seconds or UNKNOWN_SECONDS
        return seconds
