"""Random JSON schemas of bounded size for a tool's arguments, the same for the same seed."""

from __future__ import annotations

import random
from typing import Any

_WORDS = ("city", "days", "unit", "on", "path", "query", "limit", "tags", "from", "to", "id", "mode")


def random_schema(seed: int, *, depth: int = 2) -> dict[str, Any]:
    """An object with one to four properties. Strings have at most 32 characters, arrays at most 4 items, numbers a
    range; some properties are optional, some schemas are referred to."""
    draw = random.Random(seed)
    shared = {"point": _object(draw, 0), "word": _string(draw)}
    schema = _object(draw, depth)
    if "$ref" in str(schema):
        schema["$defs"] = shared
    return schema


def _object(draw: random.Random, depth: int) -> dict[str, Any]:
    names = draw.sample(_WORDS, draw.randint(1, 4))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _value(draw, depth - 1) for name in names},
        "required": [name for name in names if draw.random() < 0.7],
    }
    if draw.random() < 0.5:
        schema["additionalProperties"] = False
    return schema


def _value(draw: random.Random, depth: int) -> dict[str, Any]:
    kinds = [_string, _string, _integer, _number, _enum, _constant, _nullable, _either]
    kinds += [_array, _nested, _reference] if depth >= 0 else [_boolean, _boolean]
    kind = draw.choice(kinds)
    if kind in (_array, _nested):
        return kind(draw, depth)  # pyright: ignore[reportCallIssue]
    return kind(draw)  # pyright: ignore[reportCallIssue]


def _string(draw: random.Random) -> dict[str, Any]:
    low = draw.choice((0, 0, 1, 3))
    schema: dict[str, Any] = {"type": "string", "maxLength": draw.randint(max(low, 1), 32)}
    if low:
        schema["minLength"] = low
    if draw.random() < 0.2:
        return {"type": "string", "pattern": draw.choice(("^[a-z]{1,8}$", r"^\d{2}-[A-F]+$", "^(on|off)$"))[:-1] + "$"}
    return schema


def _integer(draw: random.Random) -> dict[str, Any]:
    low = draw.randint(-50, 50)
    return {"type": "integer", "minimum": low, "maximum": low + draw.randint(0, 1000)}


def _number(draw: random.Random) -> dict[str, Any]:
    return {"type": "number", "minimum": draw.randint(-9, 0), "maximum": draw.randint(1, 99)}


def _boolean(draw: random.Random) -> dict[str, Any]:
    return {"type": "boolean"}


def _enum(draw: random.Random) -> dict[str, Any]:
    values = ["red", "light blue", "", "é", "5", "true", 5, -1.5, True, None]
    return {"enum": draw.sample(values, draw.randint(1, 5))}


def _constant(draw: random.Random) -> dict[str, Any]:
    return {"const": draw.choice(("fixed", 7, False))}


def _nullable(draw: random.Random) -> dict[str, Any]:
    inner = draw.choice((_string, _integer, _boolean))(draw)
    return {**inner, "type": [inner["type"], "null"]}


def _either(draw: random.Random) -> dict[str, Any]:
    return {"anyOf": [draw.choice((_string, _enum))(draw), draw.choice((_integer, _boolean))(draw)]}


def _array(draw: random.Random, depth: int) -> dict[str, Any]:
    low = draw.randint(0, 2)
    return {
        "type": "array",
        "items": _value(draw, depth - 1),
        "minItems": low,
        "maxItems": draw.randint(max(low, 1), 4),
    }


def _nested(draw: random.Random, depth: int) -> dict[str, Any]:
    return _object(draw, depth)


def _reference(draw: random.Random) -> dict[str, Any]:
    return {"$ref": draw.choice(("#/$defs/point", "#/$defs/word"))}
