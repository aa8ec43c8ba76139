"""Which JSON types a tool's schema allows for one argument. Owns no validation: only what a value's text must be read
as. Hostile schemas cost a bounded number of steps."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote

from stoker.models.text.parse.json_scan import json_kind
from stoker.models.text.parse.literal import json_of_literal

Types = frozenset[str] | None
"""Allowed types by their names in JSON schema; None where nothing is known. "number" comes with "integer"."""

ONLY_STRING: Types = frozenset({"string"})
_ALL = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_STEPS = 2000
_DEPTH = 40  # references count too, so that those in a circle end


class ArgumentTypes:
    """One tool's parameters."""

    def __init__(self, parameters: dict[str, Any] | None) -> None:
        self._root: Any = parameters if parameters is not None else {}
        self._steps = 0

    def of(self, key: str) -> Types:
        """The types of argument `key`."""
        self._steps = _STEPS
        return self._member(self._root, key, _DEPTH)

    def _member(self, schema: Any, key: str, depth: int) -> Types:
        """What a schema of the whole object says of one key in it."""
        self._steps -= 1
        if not isinstance(schema, dict) or not depth or self._steps < 0:
            return None
        found: list[Types] = []
        depth -= 1
        if "$ref" in schema:
            found.append(self._member(self._target(schema["$ref"]), key, depth))
        properties = schema.get("properties")
        if isinstance(properties, dict) and key in properties:
            found.append(self._types(properties[key], depth))
        found += [self._member(part, key, depth) for part in _list(schema, "allOf")]
        for word in ("anyOf", "oneOf"):
            known = [types for part in _list(schema, word) if (types := self._member(part, key, depth)) is not None]
            found.append(frozenset().union(*known) if known else None)
        if all(types is None for types in found) and "additionalProperties" in schema:
            found.append(self._types(schema["additionalProperties"], depth))
        return _both(found)

    def _types(self, schema: Any, depth: int) -> Types:
        """What a value's own schema says."""
        self._steps -= 1
        if not isinstance(schema, dict) or not depth or self._steps < 0:
            return None
        found: list[Types] = []
        depth -= 1
        if "$ref" in schema:
            found.append(self._types(self._target(schema["$ref"]), depth))
        declared = schema.get("type")
        names = [declared] if isinstance(declared, str) else declared if isinstance(declared, list) else []
        found.append(_types_named(name for name in names if isinstance(name, str)))
        if "const" in schema:
            found.append(_types_named([_type_of(schema["const"])]))
        if values := _list(schema, "enum"):
            found.append(_types_named(_type_of(value) for value in values))
        found += [self._types(part, depth) for part in _list(schema, "allOf")]
        for word in ("anyOf", "oneOf"):
            parts = [self._types(part, depth) for part in _list(schema, word)]
            known = [types for types in parts if types is not None]
            found.append(frozenset().union(*known) if parts and len(known) == len(parts) else None)
        return _both(found)

    def _target(self, pointer: Any) -> Any:
        """Where a local `$ref` points; None where it points nowhere."""
        if not isinstance(pointer, str) or not pointer.startswith("#"):
            return None
        target: Any = self._root
        for step in unquote(pointer[1:]).split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(target, dict):
                target = target.get(step)
            elif isinstance(target, list) and step.isdecimal() and int(step) < len(target):
                target = target[int(step)]
            else:
                return None
        return target


def json_of_value(text: str, types: Types) -> str:
    """The JSON text of an argument that a model wrote as `text`, where `types` are allowed."""
    if types is None:
        kind = json_kind(text)
        if kind in ("object", "array", "boolean", "null"):
            return text.strip()
        return text if kind is not None and _round_trips(text, kind) else json_string(text)
    if types == ONLY_STRING:
        return json_string(text)
    kind = json_kind(text)
    value = text.strip() if kind is not None else json_of_literal(text)
    if kind is None and value is not None:
        kind = json_kind(value)
    if kind == "number" and "number" not in types and value is not None:
        value, kind = _whole_number(value), "integer"
    return value if value is not None and kind != "string" and kind in types else json_string(text)


def json_string(text: str) -> str:
    """`text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def _round_trips(text: str, kind: str) -> bool:
    """Whether a scalar would be written like this again."""
    if kind == "integer":
        return text == text.strip() and text != "-0"
    if kind == "number":
        return text == repr(float(text))
    return text == json_string(json.loads(text))


def _whole_number(text: str) -> str | None:
    """A number that is an integer but not written as one."""
    number = float(text)
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else None


def _list(schema: dict[str, Any], word: str) -> list[Any]:
    value = schema.get(word)
    return value if isinstance(value, list) else []


def _type_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, dict):
        return "object"
    names = {str: "string", int: "integer", float: "number", list: "array"}
    return names.get(type(value), "null")


def _types_named(names: Iterable[str]) -> Types:
    known = _ALL.intersection(names)
    return (known | {"integer"} if "number" in known else known) or None


def _both(found: Iterable[Types]) -> Types:
    """What all that is known allows; nothing where it contradicts itself."""
    known = [types for types in found if types is not None]
    return frozenset.intersection(*known) or None if known else None
