"""Dated price books: what a million tokens of each bucket costs, from when until when, for which model.

A book is a TOML file and never changes once rows were priced with it: a new price is a new entry with a later `from`,
or a new book. Money is whole nano-dollars everywhere; floats never touch it.

    id = "house-2026"                  # rows remember it
    currency = "USD"
    batch = "0.5"                      # factor on everything in the batch lane; 1 if absent

    [[price]]
    model = "kimi-k2.6"                # or "*": any model without an entry of its own
    from = 2026-01-01                  # UTC, inclusive; always if absent
    until = 2027-01-01                 # UTC, exclusive; for ever if absent
    input = "0.95"                     # dollars per million tokens, as text: 0.1 has no exact float
    cached_input = "0.16"              # as `input` if absent
    output = "4.00"
    reasoning = "4.00"                 # as `output` if absent
    batch = "0.5"                      # this model's own factor
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from stoker.types.lane import Lane
from stoker.types.usage import Usage

NANO = 10**9
MILLION = 10**6
ANY = "*"
MOST = Decimal(1_000_000)  # dollars per million tokens: above it somebody meant another unit


class PriceError(ValueError):
    """A price book cannot be read, or has no price for what was asked; the message says which and where."""


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """Nano-dollars per million tokens of each bucket, and the factor on all of them in the batch lane."""

    input: int
    cached_input: int
    output: int
    reasoning: int
    batch: Fraction = Fraction(1)

    def cost(self, usage: Usage, lane: Lane) -> int:
        """Nano-dollars, rounded once, half to even. A row is priced once: rounding never adds up within it."""
        whole = (
            usage.input_uncached * self.input
            + usage.input_cached * self.cached_input
            + usage.output_text * self.output
            + usage.output_reasoning * self.reasoning
        )
        return round(Fraction(whole, MILLION) * self.factor(lane))

    def factor(self, lane: Lane) -> Fraction:
        return self.batch if lane is Lane.BATCH else Fraction(1)


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """`start` inclusive and `end` exclusive are unix seconds."""

    model: str
    rates: Rates
    start: float = float("-inf")
    end: float = float("inf")


class PriceBook(msgspec.Struct, frozen=True, kw_only=True):
    """`prices` of one model never overlap in time."""

    id: str
    prices: tuple[Price, ...]
    note: str = ""

    def rates(self, model: str, when: float) -> Rates:
        """Raises PriceError where the book says nothing."""
        for name in (model, ANY):
            for price in self.prices:
                if price.model == name and price.start <= when < price.end:
                    return price.rates
        day = datetime.fromtimestamp(when, UTC).date()
        raise PriceError(f"the price book {self.id!r} has no price for the model {model!r} on {day}")


def load_book(name: str) -> PriceBook:
    """A book that ships with Stoker by its name, or a TOML file by its path. Raises PriceError."""
    shipped = resources.files("stoker.ledger").joinpath("books", f"{name}.toml")
    try:
        if name in shipped_books():
            return read_book(shipped.read_text(encoding="utf-8"), name)
        return read_book(Path(name).read_text(encoding="utf-8"), name)
    except OSError as error:
        known = ", ".join(shipped_books())
        raise PriceError(
            f"cannot read the price book {name!r}: {error.strerror} (books that come along: {known})"
        ) from error
    except UnicodeDecodeError as error:
        raise PriceError(f"the price book {name!r} is not UTF-8: {error}") from error


def shipped_books() -> list[str]:
    files = resources.files("stoker.ledger").joinpath("books").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"start": "from"}):
    model: str
    input: str
    output: str
    cached_input: str | None = None
    reasoning: str | None = None
    batch: str | None = None
    start: date | None = None
    until: date | None = None


class _Book(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    price: list[_Entry]
    currency: str = "USD"
    batch: str = "1"
    note: str = ""


def read_book(text: str, where: str) -> PriceBook:
    """A book from TOML. Raises PriceError that names `where` and the entry."""
    try:
        tree: dict[str, Any] = tomllib.loads(text)
        book = msgspec.convert(tree, _Book)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise PriceError(f"{where}: {error}") from error
    if book.currency != "USD":
        raise PriceError(f"{where}: the currency is {book.currency!r}; only USD is understood")
    prices = tuple(_price(entry, book.batch, f"{where}: price of {entry.model!r}") for entry in book.price)
    _check_apart(prices, where)
    return PriceBook(id=book.id, prices=prices, note=book.note)


def _price(entry: _Entry, batch: str, where: str) -> Price:
    def dollars(text: str | None, key: str, otherwise: int = 0) -> int:
        if text is None:
            return otherwise
        nanos = _decimal(text, f"{where}, {key}", MOST) * NANO
        if nanos != nanos.to_integral_value():
            raise PriceError(f"{where}, {key}: {text} has more than nine decimals")
        return int(nanos)

    paid, output = dollars(entry.input, "input"), dollars(entry.output, "output")
    start, end = _midnight(entry.start, float("-inf")), _midnight(entry.until, float("inf"))
    if start >= end:
        raise PriceError(f"{where}: it ends ({entry.until}) before it begins ({entry.start})")
    return Price(
        model=entry.model,
        start=start,
        end=end,
        rates=Rates(
            input=paid,
            cached_input=dollars(entry.cached_input, "cached_input", paid),
            output=output,
            reasoning=dollars(entry.reasoning, "reasoning", output),
            batch=Fraction(_decimal(entry.batch or batch, f"{where}, batch", Decimal(10))),
        ),
    )


def _decimal(text: str, where: str, most: Decimal) -> Decimal:
    try:
        value = Decimal(text)
    except InvalidOperation:
        raise PriceError(f"{where}: {text!r} is no number") from None
    if not (value.is_finite() and 0 <= value <= most):
        raise PriceError(f"{where}: {text} is not between 0 and {most}")
    return value


def _midnight(day: date | None, otherwise: float) -> float:
    return otherwise if day is None else datetime.combine(day, time(), UTC).timestamp()


def _check_apart(prices: Sequence[Price], where: str) -> None:
    ordered = sorted(prices, key=lambda price: (price.model, price.start))
    for first, second in pairwise(ordered):
        if first.model == second.model and second.start < first.end:
            raise PriceError(f"{where}: two prices of {first.model!r} hold at the same time")
