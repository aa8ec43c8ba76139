"""Price books: dated, exact, and clear about what is wrong with them."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.ledger.prices import PriceError, Rates, load_book, read_book, shipped_books
from stoker.types.lane import Lane
from stoker.types.usage import Usage

BOOK = """
id = "b"
batch = "0.5"
[[price]]
model = "m"
until = 2026-03-01
input = "1"
output = "2"
[[price]]
model = "m"
from = 2026-03-01
input = "0.95"
cached_input = "0.16"
output = "4.00"
reasoning = "3.5"
batch = "1"
[[price]]
model = "*"
input = "0.293"
output = "0.3"
"""


def day(year: int, month: int, number: int) -> float:
    return datetime(year, month, number, tzinfo=UTC).timestamp()


def test_prices_hold_from_until() -> None:
    book = read_book(BOOK, "b.toml")
    before, after = book.rates("m", day(2026, 3, 1) - 1), book.rates("m", day(2026, 3, 1))
    assert before == Rates(input=10**9, cached_input=10**9, output=2 * 10**9, reasoning=2 * 10**9, batch=Fraction(1, 2))
    assert (after.cached_input, after.reasoning, after.batch) == (160_000_000, 3_500_000_000, 1)
    assert book.rates("another", 0).input == 293_000_000


def test_a_model_without_a_price() -> None:
    book = read_book(BOOK.replace('model = "*"', 'model = "n"'), "b.toml")
    with pytest.raises(PriceError, match="'b' has no price for the model 'x' on 2026-01-01"):
        book.rates("x", day(2026, 1, 1))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('input = "1"', 'input = "-1"', "price of 'm', input: -1 is not between"),
        ('input = "1"', 'input = "much"', "'much' is no number"),
        ('input = "1"', 'input = "NaN"', "is not between"),
        ('input = "1"', "input = 1.0", "Expected `str`"),
        ('input = "1"', 'input = "0.0000000001"', "more than nine decimals"),
        ('input = "1"', 'input = "2000000"', "is not between"),
        ('batch = "0.5"', 'batch = "11"', "batch: 11"),
        ("until = 2026-03-01", "until = 2026-04-01", "two prices of 'm'"),
        ("until = 2026-03-01", "until = 2026-03-01\nfrom = 2027-01-01", "ends .* before it begins"),
        ('id = "b"', 'id = "b"\ncurrency = "EUR"', "only USD"),
        ('id = "b"', 'id = "b"\nprize = 1', "unknown field `prize`"),
        ('id = "b"', "id = ", "Invalid value"),
    ],
)
def test_wrong_books_are_refused_by_name(old: str, new: str, message: str) -> None:
    with pytest.raises(PriceError, match=message) as caught:
        read_book(BOOK.replace(old, new, 1), "my.toml")
    assert "my.toml" in str(caught.value)


def test_books_come_along_and_others_are_files(tmp_path: Path) -> None:
    for name in shipped_books():
        assert load_book(name).id == name
    assert load_book("public-2026-12").rates("glm-4.7-flash", 0).cached_input == 60_000_000
    path = tmp_path / "mine.toml"
    with pytest.raises(PriceError, match=r"No such file.*public-2026-12"):
        load_book(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(PriceError, match="not UTF-8"):
        load_book(str(path))
    path.write_text(BOOK)
    assert load_book(str(path)).id == "b"


tokens = st.integers(0, 10**9)


@given(st.builds(Usage, input_uncached=tokens, input_cached=tokens, output_text=tokens, output_reasoning=tokens))
def test_a_row_is_rounded_once(usage: Usage) -> None:
    rates = read_book(BOOK, "b").rates("m", 0)
    exact = Fraction(usage.input * 10**9 + usage.output * 2 * 10**9, 10**6)
    assert rates.cost(usage, Lane.INTERACTIVE) == round(exact)
    assert rates.cost(usage, Lane.BATCH) == round(exact / 2)
