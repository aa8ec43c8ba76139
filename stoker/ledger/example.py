"""A published account, rebuilt as ledger rows: a security audit that read 7 G tokens a day of code and saved 77 %.

Known of it: 7 G tokens a day; a mid-tier proprietary model would have cost 2.4 M$ a year; the open model saved 77 %.
With the open model's list prices (0.60 fresh, 0.10 cached, 3.00 output, each per million tokens) that is only possible
with about 82 % of the input from the cache and 1 % of all tokens output, which is what the rows here hold. The
baseline's own hit share is not published: it is the one at which a usual mid-tier list price (3.00, 0.30, 15.00) comes
to 2.4 M$.
"""

from __future__ import annotations

from fractions import Fraction

from stoker.ledger.bridge import Bridge, Cell, Side, bridge
from stoker.ledger.prices import MILLION, NANO, Rates
from stoker.types.lane import Lane
from stoker.types.usage import Usage

NAMES = ("cloudflare-77",)

TOKENS_A_DAY = 7 * 10**9
DAYS = 365
HIT = Fraction("0.824")
OUTPUT_SHARE = Fraction("0.01")
BASELINE_DOLLARS_A_YEAR = 2_400_000
MODEL = Rates(input=600_000_000, cached_input=100_000_000, output=3_000_000_000, reasoning=3_000_000_000)
PROPRIETARY = Rates(input=3_000_000_000, cached_input=300_000_000, output=15_000_000_000, reasoning=15_000_000_000)


def rows() -> list[Usage]:
    """A row a day."""
    output = int(TOKENS_A_DAY * OUTPUT_SHARE)
    cached = int((TOKENS_A_DAY - output) * HIT)
    day = Usage(input_uncached=TOKENS_A_DAY - output - cached, input_cached=cached, output_text=output)
    return [day] * DAYS


def baseline_hit() -> Fraction:
    """The hit share at which the proprietary prices make the published sum, at the same mix."""
    tokens = Fraction(TOKENS_A_DAY * DAYS, MILLION)
    output = tokens * OUTPUT_SHARE
    fresh = (tokens - output) * PROPRIETARY.input + output * PROPRIETARY.output
    return (fresh - BASELINE_DOLLARS_A_YEAR * NANO) / (
        (tokens - output) * (PROPRIETARY.input - PROPRIETARY.cached_input)
    )


def cloudflare_77(hit: Fraction | None = None, output_share: Fraction | None = None) -> Bridge:
    """The account, or what it would have been with other shares. Raises BridgeError for one outside of 0 to 1."""
    usage = sum(rows(), start=Usage())
    cell = Cell(lane=Lane.STANDARD, usage=usage, rates=MODEL, baseline=PROPRIETARY)
    return bridge([cell], Side(hit=hit, output_share=output_share), Side(hit=baseline_hit(), output_share=OUTPUT_SHARE))
