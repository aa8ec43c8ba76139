"""Every line of parser.jsonl, cut in every way that a stream may be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import pytest
from parse_cases import (
    CASES,
    ID_CASES,
    KIMI_MARK,
    TEXT_CASES,
    Case,
    by_bytes,
    check,
    format_for,
    from_ids,
    grouped,
    parser_of,
    run,
    texts,
    tokens,
)
from shared_data import needs_shared

from stoker.models.text.parse.format import Piece

pytestmark = needs_shared
LONG = 1500  # characters; cuts of longer lines are sampled here, and all tried by `make conformance`


def name(case: Case) -> str:
    return case["id"]


def test_the_lines_are_there() -> None:
    assert len(CASES) >= 172
    assert {case["family"] for case in CASES} == {"kimi_k2", "kimi_k25", "glm45", "glm47", "hermes"}
    assert [case["id"] for case in CASES if case not in TEXT_CASES and case not in ID_CASES] == []


@pytest.mark.parametrize("case", TEXT_CASES, ids=name)
def test_whole(case: Case) -> None:
    check(case, run(case, texts(case["raw_text"])))


@pytest.mark.parametrize("case", TEXT_CASES, ids=name)
def test_in_all_cuts_of_text(case: Case) -> None:
    text = case["raw_text"]
    whole = run(case, texts(text)).plain
    for pushes in (texts(*text), by_bytes(text), *(texts(*grouped(text, size)) for size in (2, 3, 7))):
        result = run(case, pushes)
        check(case, result)
        assert result.plain == whole
    step = 1 if len(text) <= LONG else 97
    for cut in range(1, len(text), step):
        assert run(case, texts(text[:cut], text[cut:])).plain == whole, cut


@pytest.mark.parametrize("case", TEXT_CASES, ids=name)
@pytest.mark.parametrize("control", [False, True], ids=["text", "control"])
def test_tokens_per_push(case: Case, control: bool) -> None:
    pieces = tokens(case, control=control)
    results = [run(case, grouped(pieces, size), control_known=control) for size in (1, 2, 3, 4, 5, 6, len(pieces))]
    for result in results:
        check(case, result)
        assert result.plain == results[0].plain


@pytest.mark.parametrize("case", ID_CASES, ids=name)
def test_token_ids_per_push(case: Case) -> None:
    ids = case["raw_token_ids"]
    results = [
        run(case, from_ids(case, grouped(ids, size)), control_known=True) for size in (1, 2, 3, 4, 5, 6, len(ids))
    ]
    for result in results:
        check(case, result)
        assert result.plain == results[0].plain


@pytest.mark.parametrize("case", ID_CASES, ids=name)
def test_two_pieces_of_token_ids(case: Case) -> None:
    ids = case["raw_token_ids"]
    whole = run(case, from_ids(case, [ids]), control_known=True).plain
    for cut in range(1, len(ids), 1 if len(ids) <= LONG else 97):
        assert run(case, from_ids(case, [ids[:cut], ids[cut:]]), control_known=True).plain == whole, cut


def without_beginning(text: str, marks: Iterable[str]) -> str:
    """`text` without the beginning of a marker at its end, which is text where nothing follows."""
    starts = [size for mark in marks for size in range(1, len(mark)) if text.endswith(mark[:size])]
    return text[: len(text) - max(starts, default=0)]


def check_truncated(case: Case, pushes: Sequence[Sequence[Piece]], *, control_known: bool) -> None:
    """Every beginning of an output, cut off: never raises (nor does a stop there), leaks no marker, takes nothing back,
    and returns no call as finished that the whole output does not have like this."""
    whole = run(case, pushes, control_known=control_known)
    sizes = range(len(pushes)) if len(pushes) <= LONG // 4 else [*range(0, len(pushes), 41), len(pushes) - 1]
    for size in sizes:
        run(case, pushes[:size], control_known=control_known, end="stop")
        result = run(case, pushes[:size], control_known=control_known, end="length")
        assert result.finish_reason == "length"
        for cut, full in ((result.reasoning, whole.reasoning), (result.content, whole.content)):
            assert full.startswith(without_beginning(cut, format_for(case).marks).rstrip())
        assert len(result.calls) <= len(whole.calls)
        for call, full in zip(result.calls, whole.calls, strict=False):
            assert call.name == full.name
            assert full.arguments.startswith(call.arguments)
            assert not call.complete or call.plain == full.plain
        if case not in TEXT_CASES:
            continue
        said = result.content + result.reasoning
        if format_for(case).reader == "kimi":
            assert not KIMI_MARK.search(said)
        for mark in format_for(case).marks:
            assert said.count(mark) <= (whole.content + whole.reasoning).count(mark), mark


@pytest.mark.parametrize("case", TEXT_CASES, ids=name)
@pytest.mark.parametrize("control", [False, True], ids=["text", "control"])
def test_truncated_at_every_token(case: Case, control: bool) -> None:
    check_truncated(case, grouped(tokens(case, control=control), 1), control_known=control)


@pytest.mark.parametrize("case", ID_CASES, ids=name)
def test_truncated_at_every_token_id(case: Case) -> None:
    check_truncated(case, from_ids(case, grouped(case["raw_token_ids"], 1)), control_known=True)


@pytest.mark.parametrize("case", TEXT_CASES, ids=name)
def test_truncated_at_every_character(case: Case) -> None:
    """Here a marker may be cut in two, and its beginning is text; no call is ever finished too early all the same."""
    text = case["raw_text"]
    whole = run(case, texts(text))
    for size in range(0, len(text), 1 if len(text) <= LONG else 97):
        result = run(case, texts(text[:size]), end="length")
        finished = [call.plain for call in result.calls if call.complete]
        assert finished == [call.plain for call in whole.calls][: len(finished)]


@pytest.mark.parametrize("wanted", ["kimi_k2/args-long", "glm47/long-value"])
def test_long_arguments_flow(wanted: str) -> None:
    """Nothing waits for the end of a value, an object or a call: with nearly every token something is sent."""
    case = next(case for case in CASES if case["id"] == wanted)
    parser = parser_of(case)
    pieces = tokens(case, control=False)
    parser.push(pieces[:40])
    sent = [bool(parser.push([piece])) for piece in pieces[40:-10]]
    assert len(sent) > 1000
    assert all(first or second for first, second in pairwise(sent))
