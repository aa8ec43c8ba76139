"""The scanner against the library's parser, on JSON and on what only looks like it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.models.text.parse.json_scan import JsonScan, json_kind

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
KINDS = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}
BITS = st.sampled_from(
    [*'{}[],:"\\-+.eE 0123\n', "true", "null", "false", "tru", "\\u00e9", '"a"', "\t", "\x01", "é", "NaN"]
)


def library_kind(text: str) -> str | None:
    def refuse(constant: str) -> None:
        raise ValueError(constant)

    try:
        return KINDS[type(json.loads(text, parse_constant=refuse))]
    except ValueError:
        return None


@settings(max_examples=400, deadline=None)
@given(VALUES, st.booleans(), st.sampled_from([None, 2]), st.lists(st.integers(1, 5), max_size=9))
def test_values_end_where_they_end(value, ascii_only: bool, indent, cuts) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert json_kind(text) == KINDS[type(value)]
    scan = JsonScan()
    rest = f"{text}]{text}"
    consumed = 0
    for size in [*cuts, len(rest)]:
        part, rest = rest[:size], rest[size:]
        end = scan.feed(part)
        consumed += end
        if end < len(part):
            break
    assert scan.done
    assert not scan.broken
    assert scan.kind == KINDS[type(value)]
    assert consumed == len(text)


@settings(max_examples=1500, deadline=None)
@given(st.lists(BITS, max_size=10).map("".join))
def test_exactly_json_is_json(text: str) -> None:
    assert json_kind(text) == library_kind(text)


@settings(max_examples=400, deadline=None)
@given(st.lists(BITS, max_size=10).map("".join), st.integers(0, 20))
def test_the_cut_does_not_matter(text: str, cut: int) -> None:
    whole, parts = JsonScan(), JsonScan()
    end = whole.feed(text)
    first = parts.feed(text[:cut])
    second = parts.feed(text[cut:]) if first == len(text[:cut]) else 0
    assert (first + second, parts.done, parts.broken, parts.kind) == (end, whole.done, whole.broken, whole.kind)


@pytest.mark.parametrize("text", ["[" * 100_000 + "]" * 100_000, '{"a":' * 50_000 + "1" + "}" * 50_000, "9" * 100_000])
def test_depth_and_length_have_no_limit(text: str) -> None:
    assert json_kind(text) is not None
    assert json_kind(text[:-1] + "x") is None
