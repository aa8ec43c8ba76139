"""Limits on clients' schemas, and what is changed in them on the way to a grammar."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.models.text.schema import MAX_BYTES, MAX_DEPTH, MAX_ENUM, check, prepare, resolve
from stoker.types.errors import ErrorKind, StokerError


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def deep_json(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def refused(schema: object) -> str:
    with pytest.raises(StokerError) as error:
        check(schema, "schema")
    assert error.value.kind is ErrorKind.INVALID
    assert error.value.param == "schema"
    return error.value.code


def test_what_is_just_within_the_limits() -> None:
    for schema in (
        True,
        {},
        nested(MAX_DEPTH),
        {"enum": list(range(MAX_ENUM))},
        {"description": "x" * (MAX_BYTES - 100)},
        {"$ref": "#/$defs/tree", "$defs": {"tree": {"properties": {"left": {"$ref": "#/$defs/tree"}}}}},
        {"properties": {"$ref": {"type": "string"}}},
    ):
        assert check(schema, "schema") is schema


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        (None, "invalid_schema"),
        ([], "invalid_schema"),
        (nested(MAX_DEPTH + 1), "schema_too_deep"),
        ({"anyOf": [nested(MAX_DEPTH)]}, "schema_too_deep"),
        ({"$defs": {"a": nested(MAX_DEPTH)}}, "schema_too_deep"),
        ({"const": deep_json(5000)}, "schema_too_deep"),
        ({"description": "x" * MAX_BYTES}, "schema_too_large"),
        ({"enum": list(range(MAX_ENUM + 1))}, "schema_too_large"),
        ({"anyOf": [{"enum": list(range(i, i + 900))} for i in range(3)]}, "schema_too_large"),
        ({"anyOf": [{"$ref": "#/$defs/a"}] * 1001, "$defs": {"a": {}}}, "schema_too_large"),
        ({"$ref": "#"}, "invalid_schema"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, "invalid_schema"),
        ({"items": {"$ref": "#/$defs/nowhere"}}, "invalid_schema"),
        ({"$ref": "https://example.com/schema"}, "invalid_schema"),
        ({"$ref": 5}, "invalid_schema"),
    ],
)
def test_what_is_beyond_them(schema: object, code: str) -> None:
    assert refused(schema) == code


def test_references_follow_json_pointers() -> None:
    root = {"$defs": {"a/b": {"x": [1, {"y z": 2}]}, "~": 3}}
    assert resolve(root, "#") is root
    assert resolve(root, "#/$defs/a~1b/x/1/y%20z") == 2
    assert resolve(root, "#/$defs/~0") == 3


def test_a_client_sets_no_options_and_white_space_is_bounded() -> None:
    made = json.loads(prepare({"x-guidance": {"whitespace_pattern": r"\s*"}, "type": "null"}, lenient=False))
    assert made["type"] == "null"
    assert made["x-guidance"]["whitespace_pattern"] == r"\x20|\n\x20{0,24}"
    assert made["x-guidance"]["lenient"] is False


@pytest.mark.parametrize(
    "open_on_purpose",
    [
        {"properties": {"a": {}}, "additionalProperties": True},
        {"properties": {"a": {}}, "patternProperties": {"^x": {}}},
        {"properties": {"a": {}}, "required": ["b"]},
        {"type": "object"},
        {"properties": {"a": {}}, "anyOf": [{"required": ["a"]}, {"properties": {"b": {}}}]},
        {"allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]},
        {"properties": {"a": {}}, "$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": {}}}}},
        {"properties": {"a": {"if": {"properties": {"b": {"const": 1}}}, "then": {"required": ["c"]}}}},
    ],
)
def test_objects_stay_open_where_others_may_add_properties(open_on_purpose: dict[str, Any]) -> None:
    made = json.loads(prepare(open_on_purpose, lenient=True))
    del made["x-guidance"]
    assert made == open_on_purpose


def test_objects_are_closed_where_they_say_all_there_is() -> None:
    schema = {
        "properties": {"a": {"items": {"properties": {"b": {}}}}, "c": {"anyOf": [{"properties": {"d": {}}}, {}]}},
        "$defs": {"e": {"properties": {}}},
        "default": {"properties": {}},
    }
    made = json.loads(prepare(schema, lenient=True))
    assert made["additionalProperties"] is False
    assert made["properties"]["a"]["items"]["additionalProperties"] is False
    assert made["properties"]["c"]["anyOf"] == [{"properties": {"d": {}}, "additionalProperties": False}, {}]
    assert made["$defs"]["e"]["additionalProperties"] is False
    assert made["default"] == {"properties": {}}
    assert "additionalProperties" not in schema, "the client's schema is not touched"


def test_sloppy_schemas_do_not_break_anything() -> None:
    for sloppy in (
        {"properties": None, "required": None, "items": 5, "anyOf": {}, "allOf": "x", "enum": 3, "type": 7},
        {"properties": [1], "required": {"a": 1}, "$defs": [], "patternProperties": 1, "additionalProperties": []},
        {"properties": {"a": None, "b": []}, "required": [1, [2]]},
    ):
        prepare(check(sloppy, "schema"), lenient=True)
