"""Typed reading of a decoded JSON object: right type, inside its bounds, or an error that names the parameter.

Null counts as absent everywhere, as OpenAI clients expect. Owns no knowledge of any dialect.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stoker.types.errors import StokerError, invalid

JsonObject = dict[str, Any]

MAX_NAME_CHARS = 256  # of a name, an id, a word


def kind_of(value: object) -> str:
    """What JSON calls this value."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def wrong_type(param: str, expected: str, value: object) -> StokerError:
    return invalid("invalid_type", f"'{param}' must be {expected}, not {kind_of(value)}.", param=param)


def unsupported(param: str, reason: str) -> StokerError:
    """A known feature that is not served: said plainly instead of answering something else than was asked."""
    return invalid("unsupported_parameter", f"'{param}' is not supported here: {reason}.", param=param)


def depth_within(value: object, limit: int) -> bool:
    """Whether nested arrays and objects go at most `limit` deep. Iterative: hostile depth must not hit recursion."""
    level: list[object] = [value]
    for _ in range(limit):
        deeper: list[object] = []
        for item in level:
            if isinstance(item, dict):
                deeper.extend(item.values())
            elif isinstance(item, list):
                deeper.extend(item)
        if not deeper:
            return True
        level = deeper
    return not any(isinstance(item, dict | list) for item in level)


class Fields:
    """One JSON object. `path` is where it lies in the body (`messages[0]`), empty for the body itself."""

    __slots__ = ("data", "path")

    def __init__(self, data: JsonObject, path: str = "") -> None:
        self.data = data
        self.path = path

    @classmethod
    def of(cls, value: object, path: str) -> Fields:
        if not isinstance(value, dict):
            raise wrong_type(path, "an object", value)
        return cls(value, path)

    def param(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def get(self, name: str) -> Any:
        return self.data.get(name)

    def missing(self, name: str) -> StokerError:
        param = self.param(name)
        return invalid("missing_required_parameter", f"'{param}' is required.", param=param)

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise wrong_type(self.param(name), "an integer", value)
        self._bounded("integer", name, value, low, high)
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise wrong_type(self.param(name), "a number", value)
        self._bounded("decimal", name, value, low, high)
        return float(value)

    def _bounded(self, kind: str, name: str, value: float, low: float, high: float) -> None:
        param = self.param(name)
        if value < low:
            raise invalid(f"{kind}_below_min_value", f"'{param}' must be at least {low:g}.", param=param)
        if value > high:
            raise invalid(f"{kind}_above_max_value", f"'{param}' must be at most {high:.16g}.", param=param)

    def boolean(self, name: str) -> bool:
        value = self.data.get(name)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise wrong_type(self.param(name), "a boolean", value)
        return value

    def text(self, name: str, *, longest: int | None = None) -> str | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise wrong_type(self.param(name), "a string", value)
        if longest is not None and len(value) > longest:
            param = self.param(name)
            raise invalid("string_above_max_length", f"'{param}' has more than {longest} characters.", param=param)
        return value

    def required_text(self, name: str, *, longest: int | None = None) -> str:
        value = self.text(name, longest=longest)
        if value is None:
            raise self.missing(name)
        return value

    def choice(self, name: str, allowed: Iterable[str]) -> str | None:
        value = self.text(name)
        if value is not None and value not in allowed:
            param = self.param(name)
            raise invalid("invalid_value", f"'{param}' must be one of {', '.join(allowed)}.", param=param)
        return value

    def object(self, name: str) -> Fields | None:
        value = self.data.get(name)
        return None if value is None else Fields.of(value, self.param(name))

    def array(self, name: str, *, longest: int) -> list[Any] | None:
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            raise wrong_type(self.param(name), "an array", value)
        if len(value) > longest:
            param = self.param(name)
            raise invalid("array_above_max_length", f"'{param}' has more than {longest} items.", param=param)
        return value
