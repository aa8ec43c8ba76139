"""Types that schemas allow, and what a value's text becomes under them."""

from __future__ import annotations

import ast
import json
import time
import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.models.text.parse.literal import json_of_literal
from stoker.models.text.parse.schema import ArgumentTypes, json_of_value

S, INT, N = {"type": "string"}, {"type": "integer"}, {"type": "number"}
DEFS = {
    "$defs": {
        "s": S,
        "a/b": INT,
        "loop": {"$ref": "#/$defs/pool"},
        "pool": {"anyOf": [{"$ref": "#/$defs/loop"}, S]},
        "list": [S, INT],
        "args": {"properties": {"far": INT}},
    }
}


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        (S, "string"),
        (N, "number integer"),
        ({"type": ["string", "null"]}, "string null"),
        ({"type": "text"}, None),
        ({}, None),
        (True, None),
        ({"enum": ["1", 2, 2.5, True, None, [], {}]}, "string integer number boolean null array object"),
        ({"enum": []}, None),
        ({"const": 1}, "integer"),
        ({"const": None}, "null"),
        ({"type": "string", "enum": [1]}, None),
        ({"anyOf": [S, INT]}, "string integer"),
        ({"oneOf": [S, {}]}, None),
        ({"allOf": [{"minLength": 1}, S]}, "string"),
        ({"allOf": [{"anyOf": [S, INT]}, {"anyOf": [N, {"type": "null"}]}]}, "integer"),
        ({"$ref": "#/$defs/s"}, "string"),
        ({"$ref": "#/$defs/a~1b"}, "integer"),
        ({"$ref": "#/%24defs/s"}, "string"),
        ({"$ref": "#/$defs/list/1"}, "integer"),
        ({"$ref": "#/$defs/list/7"}, None),
        ({"$ref": "#/$defs/nowhere"}, None),
        ({"$ref": "http://example.org/s"}, None),
        ({"$ref": "#/$defs/loop"}, None),
        ({"$ref": 5, "type": 7, "enum": "x", "allOf": {}}, None),
    ],
)
def test_types_of_a_value(schema: Any, types: str | None) -> None:
    found = ArgumentTypes({"properties": {"x": schema}, **DEFS}).of("x")
    assert found == (None if types is None else frozenset(types.split()))


@pytest.mark.parametrize(
    ("parameters", "types"),
    [
        ({"$ref": "#/$defs/args", **DEFS}, "integer"),
        ({"allOf": [{"properties": {"far": INT}}, {"properties": {"near": S}}]}, "integer"),
        ({"anyOf": [{"properties": {"far": INT}}, {"properties": {"far": S}}, {}]}, "integer string"),
        ({"additionalProperties": S}, "string"),
        ({"properties": {"far": INT}, "additionalProperties": S}, "integer"),
        ({"properties": {"far": {}}, "additionalProperties": False}, None),
        ({"properties": [1]}, None),
        (None, None),
    ],
)
def test_types_of_a_member(parameters: Any, types: str | None) -> None:
    assert ArgumentTypes(parameters).of("far") == (None if types is None else frozenset(types.split()))


def test_hostile_schemas_cost_little() -> None:
    bomb: dict[str, Any] = {f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 9} for level in range(40)}
    deep: Any = S
    for _ in range(500):
        deep = {"allOf": [deep]}
    began = time.process_time()
    for schema in ({"$ref": "#/$defs/d0"}, deep, {"anyOf": [{"$ref": "#"}] * 50}):
        ArgumentTypes({"properties": {"x": schema}, "$defs": bomb, "anyOf": [{"$ref": "#"}] * 50}).of("x")
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        (" x ", "string", " x "),
        ("5", "string", "5"),
        ("null", "string null", None),
        ("none", "string null", "none"),
        (" 5\n", "integer", 5),
        ("5.0", "integer", 5),
        ("1e3", "integer", 1000),
        ("5.5", "integer", "5.5"),
        ("1e400", "integer", "1e400"),
        ("1e400", "number integer", 1e400),
        ("+5", "integer", 5),
        (".5", "number integer", 0.5),
        ("true", "boolean", True),
        ("True", "boolean", True),
        ("yes", "boolean", "yes"),
        ("1", "boolean", "1"),
        ('"x"', "integer string", '"x"'),
        ('"x"', "integer", '"x"'),
        ("{'a': None}", "object", {"a": None}),
        ("('a', 1,)", "array", ["a", 1]),
        ("{1: 2}", "object", "{1: 2}"),
        ("[1, 2", "array", "[1, 2"),
        ("{}", "array", "{}"),
        ("NaN", "number integer", "NaN"),
        ("[1] [2]", "array", "[1] [2]"),
        ("1 2", "integer", "1 2"),
        ("1+2", "integer", "1+2"),
    ],
)
def test_values_by_type(text: str, types: str, value: Any) -> None:
    found = json.loads(json_of_value(text, frozenset(types.split())))
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", 5),
        ("-0", "-0"),
        ("05", "05"),
        ("1.50", "1.50"),
        ("1.5", 1.5),
        ("1e3", "1e3"),
        (" 5", " 5"),
        (" true ", True),
        ("True", "True"),
        ('"x"', "x"),
        ('"\\u0041"', '"\\u0041"'),
        (' {"a": [1.50]} ', {"a": [1.5]}),
        ("plain", "plain"),
        ("", ""),
        ("9" * 5000, None),
    ],
)
def test_values_without_a_type(text: str, value: Any) -> None:
    written = json_of_value(text, None)
    if value is None:
        assert written == text
    else:
        assert json.loads(written) == value
        assert type(json.loads(written)) is type(value)


LITERALS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=400, deadline=None)
@given(LITERALS)
def test_python_literals_keep_their_value(value: Any) -> None:
    written = json_of_literal(f" {value!r} ")
    assert written is not None
    assert json.loads(written) == value


@settings(max_examples=800, deadline=None)
@given(
    st.lists(
        st.sampled_from([*"[](){},:'\"\\ 1.+-", "True", "None", "x", "'a'", "\\x41", "\\n", "\\d", "12", "\n"]),
        max_size=8,
    ).map("".join)
)
def test_only_python_literals_become_json(text: str) -> None:
    """What comes out as JSON is what Python reads; parentheses, and escapes that Python refuses, are the exceptions."""
    try:
        found = json.loads(json_of_literal(text) or "")
    except ValueError:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            expected = ast.literal_eval(text.strip())
        except (ValueError, SyntaxError, TypeError):
            assert any(char in text for char in "()\\")
            return
    assert found == expected or "(" in text


def test_long_broken_literals_cost_little() -> None:
    began = time.process_time()
    for text in ("'" + "a" * 500_000, "'" + "\\'" * 250_000, "[" * 500_000, " " * 500_000 + "x", "1" * 500_000 + "x"):
        json_of_literal(text)
    assert time.process_time() - began < 5
