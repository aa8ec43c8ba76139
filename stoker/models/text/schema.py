"""JSON schemas of clients, checked and made ready for a grammar.

Owns the limits on a schema and what is changed in it before llguidance reads it: white space is bounded, objects that
declare their properties take no others, and options that only the server sets are set. What comes out accepts nothing
that the client's schema refuses. Does not own the meaning of keywords: llguidance has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import msgspec

from stoker.types.errors import StokerError, invalid

MAX_BYTES = 64 << 10
MAX_DEPTH = 32  # schemas within schemas
MAX_NESTING = 128  # JSON within JSON, values of enums among it
MAX_ENUM = 2000  # values in all
MAX_REFS = 1000

# A space or a line break with its indent, once where JSON allows white space: enough for every common layout, and a
# model that has lost itself cannot go on with blanks for ever.
WHITE_SPACE = r"\x20|\n\x20{0,24}"

Schema = dict[str, Any] | bool

_MAPS = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLES = (
    "items",
    "additionalProperties",
    "contains",
    "not",
    "if",
    "then",
    "else",
    "propertyNames",
    "additionalItems",
)
_OPENING = {  # keywords beside which an object may have to take properties that it does not declare
    *("additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "minProperties"),
    *("allOf", "anyOf", "oneOf", "not", "if", "$ref", "dependentSchemas", "dependentRequired", "dependencies"),
}


def check(schema: object, param: str) -> Schema:
    """The schema itself, within the limits. Raises StokerError (INVALID) naming `param`."""
    if isinstance(schema, bool):
        return schema
    if not isinstance(schema, dict):
        raise invalid("invalid_schema", f"'{param}' must be a JSON schema, an object.", param=param)
    _check_nesting(schema, param)
    size = len(msgspec.json.encode(schema))
    if size > MAX_BYTES:
        raise invalid("schema_too_large", f"'{param}' has {size} bytes; {MAX_BYTES} are allowed.", param=param)
    values = refs = 0
    for node, depth in _schemas(schema):
        if depth > MAX_DEPTH:
            raise invalid("schema_too_deep", f"'{param}' nests schemas more than {MAX_DEPTH} deep.", param=param)
        enum = node.get("enum")
        values += len(enum) if isinstance(enum, list) else 0
        if "$ref" in node:
            refs += 1
            _check_ref(schema, node, param)
    if values > MAX_ENUM:
        raise invalid("schema_too_large", f"'{param}' has more than {MAX_ENUM} enum values.", param=param)
    if refs > MAX_REFS:
        raise invalid("schema_too_large", f"'{param}' has more than {MAX_REFS} references.", param=param)
    return schema


def prepare(schema: Schema, *, lenient: bool) -> str:
    """A schema that was checked, as the JSON that a grammar holds. `lenient`: keywords that cannot be enforced are
    ignored instead of refused."""
    options = {"whitespace_pattern": WHITE_SPACE, "lenient": lenient}
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    kept = {key: value for key, value in schema.items() if key != "x-guidance"}
    if not any(_joins(node) for node, _ in _schemas(kept)):
        kept = _closed(kept)
    return msgspec.json.encode({"x-guidance": options, **kept}).decode()


def resolve(root: dict[str, Any], ref: str) -> Any:
    """What a local reference points to. Raises LookupError, TypeError or ValueError if there is no such place."""
    if not ref.startswith("#"):
        raise LookupError(ref)
    target: Any = root
    for part in unquote(ref[1:]).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        target = target[int(key)] if isinstance(target, list) else target[key]
    return target


def references(schema: dict[str, Any]) -> list[str]:
    """All references in it."""
    return [node["$ref"] for node, _ in _schemas(schema) if isinstance(node.get("$ref"), str)]


def _check_nesting(value: object, param: str) -> None:
    """Without recursion: what comes from a client may be nested deeper than the interpreter's stack."""
    level = [value]
    for _ in range(MAX_NESTING):
        level = [item for holder in level for item in _items(holder)]
        if not level:
            return
    raise invalid("schema_too_deep", f"'{param}' is nested more than {MAX_NESTING} deep.", param=param)


def _items(holder: object) -> list[Any]:
    values = holder.values() if isinstance(holder, dict) else holder if isinstance(holder, list) else ()
    return [item for item in values if isinstance(item, dict | list)]


def _schemas(root: dict[str, Any]) -> Iterator[tuple[dict[str, Any], int]]:
    """Every schema within `root`, itself first, with its depth."""
    stack: list[tuple[Any, int]] = [(root, 0)]
    while stack:
        node, depth = stack.pop()
        if not isinstance(node, dict):
            continue
        yield node, depth
        for key in _MAPS:
            if isinstance(inner := node.get(key), dict):
                stack += ((item, depth + 1) for item in inner.values())
        for key in (*_LISTS, "items"):
            if isinstance(inner := node.get(key), list):
                stack += ((item, depth + 1) for item in inner)
        stack += ((node[key], depth + 1) for key in _SINGLES if key in node)


def _check_ref(root: dict[str, Any], node: dict[str, Any], param: str) -> None:
    """References must be local, lead somewhere, and not only to one another."""
    seen: set[str] = set()
    target: Any = node
    while isinstance(target, dict) and "$ref" in target:
        ref = target["$ref"]
        if not isinstance(ref, str) or ref in seen:
            raise invalid("invalid_schema", f"'{param}' has a $ref that leads to itself or is no text.", param=param)
        seen.add(ref)
        try:
            target = resolve(root, ref)
        except (LookupError, TypeError, ValueError):
            raise _no_such_ref(ref, param) from None


def _no_such_ref(ref: str, param: str) -> StokerError:
    return invalid("invalid_schema", f"'{param}' has a $ref to {ref[:100]!r}, which is not in it.", param=param)


def _joins(node: dict[str, Any]) -> bool:
    """Are there objects here that must satisfy several schemas at once, each of which knows only its own properties?"""
    own = node.keys() & {"properties", "patternProperties", "additionalProperties", "required"}
    return bool(
        node.keys() & {"allOf", "if", "dependentSchemas", "unevaluatedProperties"}
        or (own and node.keys() & {"anyOf", "oneOf", "not", "$ref"})
        or ("$ref" in node and node.keys() & {"anyOf", "oneOf", "not"})
    )


def _closed(value: Any) -> Any:
    """The schema with `additionalProperties: false` wherever properties are declared and nothing is said of others."""
    if not isinstance(value, dict):
        return value
    closed = dict(value)
    for key in _MAPS:
        if isinstance(inner := closed.get(key), dict):
            closed[key] = {name: _closed(item) for name, item in inner.items()}
    for key in (*_LISTS, "items"):
        if isinstance(inner := closed.get(key), list):
            closed[key] = [_closed(item) for item in inner]
    for key in _SINGLES:
        if key in closed and key != "not":
            closed[key] = _closed(closed[key])
    properties, required = closed.get("properties"), closed.get("required", [])
    if isinstance(properties, dict) and isinstance(required, list) and not _OPENING & closed.keys():
        declared = [name for name in required if isinstance(name, str) and name in properties]
        if len(declared) == len(required):
            closed["additionalProperties"] = False
    return closed
