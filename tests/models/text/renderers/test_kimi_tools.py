"""TypeScript declarations beyond the published prompts, and when JSON is written instead."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stoker.models.text.renderers.kimi_tools import declare_typescript


def tool(parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": parameters, **more}}


def body(parameters: Any) -> str:
    text = declare_typescript([tool(parameters)])
    head, tail = "# Tools\n\n## functions\nnamespace functions {\n", "\n}\n"
    assert text.startswith(head)
    assert text.endswith(tail)
    return text.removeprefix(head).removesuffix(tail)


def field(schema: Any) -> str:
    text = body({"properties": {"x": schema}, "required": ["x"]})
    return text.removeprefix("type f = (_: {\n").removesuffix("\n}) => any;")


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (True, "  x: any"),
        (False, "  x: null"),
        ({}, "  x: any"),
        ({"type": "null"}, "  x: null"),
        ({"type": "array"}, "  x: Array<any>"),
        ({"type": "array", "items": {}}, "  x: Array<any>"),
        ({"type": "array", "items": True}, "  x: Array<any>"),
        ({"type": ["object", "array"]}, "  x: {} | Array<any>"),
        ({"enum": [1, 2.5, True, None, 'a"b']}, '  x: 1 | 2.5 | True | None | "a"b"'),
        ({"enum": ["a", None], "type": ["string", "null"]}, '  x: "a" | None'),
        ({"type": "string", "default": "é"}, '  // Default: "é"\n  x: string'),
        ({"type": "number", "default": 1.5}, "  // Default: 1.5\n  x: number"),
        ({"type": "object", "default": {"a": [1]}}, '  // Default: {"a": [1]}\n  x: {}'),
        ({"type": "string", "default": None}, "  x: string"),
        ({"type": "integer", "minimum": 1, "maxLength": 3}, "  // minimum: 1\n  x: number"),
        (
            {"type": "array", "items": {"type": "string", "description": "one\ntwo", "pattern": "a"}},
            "  x: Array<\n    // one\n    // two\n    // pattern: a\n    string\n  >",
        ),
        (
            {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "integer"}}},
            "  x: {\n    [k: string]: Array<number>\n  }",
        ),
        ({"anyOf": [{"type": "object", "properties": {"a": {}}}, {"type": "null"}]}, "  x: {\n    a?: any\n  } | null"),
    ],
)
def test_types(schema: Any, text: str) -> None:
    assert field(schema) == text


def test_required_fields_come_first_and_each_group_in_order() -> None:
    text = body({"properties": {"d": {}, "b": {}, "c": {}, "a": {}}, "required": ["c", "b"]})
    assert text == "type f = (_: {\n  b: any,\n  c: any,\n  a?: any,\n  d?: any\n}) => any;"


def test_a_schema_that_names_itself_becomes_an_interface() -> None:
    text = body({"properties": {"next": {"$ref": "#"}}, "type": "object"})
    assert text == "interface parameters {\n  next?: parameters\n}\ntype f = (_: parameters) => any;"


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{}]},
        {"allOf": [{}]},
        {"const": 1},
        {"description": "no type"},
        {"$ref": "#/$defs/absent"},
        {"$ref": "other.json"},
        {"$ref": 3},
        {"enum": ["a", 1], "type": "string"},
        {"enum": ["a"], "type": ["string", "integer"]},
        {"enum": 3},
        {"type": ["strange"]},
        {"type": "object", "additionalProperties": "x"},
        {"type": "string", "description": 3},
        {"type": "object", "properties": []},
        "no schema",
        None,
    ],
)
def test_what_typescript_cannot_tell_is_sorted_json_for_all_tools(schema: Any) -> None:
    tools = [tool({"type": "object", "properties": {"x": schema}}), tool({}, description="é")]
    text = declare_typescript(tools)
    assert text == json.dumps(tools, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def test_tools_of_other_types_are_not_declared() -> None:
    assert declare_typescript([{"type": "web_search"}]) == ""
    assert "web" not in declare_typescript([{"type": "web_search"}, tool({})])
