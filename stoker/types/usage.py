"""Token counts of one request, in disjoint buckets: their sum is what was read and written."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every dialect derives its own fields from these; no bucket contains another.

    `input_cached` counts prompt tokens whose KV was found in the prefix cache, never replayed ones.
    """

    input_uncached: int = 0
    input_cached: int = 0
    output_text: int = 0
    output_reasoning: int = 0

    @property
    def input(self) -> int:
        return self.input_uncached + self.input_cached

    @property
    def output(self) -> int:
        return self.output_text + self.output_reasoning

    @property
    def total(self) -> int:
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_uncached=self.input_uncached + other.input_uncached,
            input_cached=self.input_cached + other.input_cached,
            output_text=self.output_text + other.output_text,
            output_reasoning=self.output_reasoning + other.output_reasoning,
        )
