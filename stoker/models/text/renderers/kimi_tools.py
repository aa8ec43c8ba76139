"""Tool declarations of Kimi K2.5: each function as a TypeScript type, with comments for what types cannot say.

JSON schema is larger than what this form can tell. A schema it cannot tell makes all tools appear as sorted compact
JSON instead, as the maker's encoder does; the model knows both forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from stoker.models.text.fixed import to_json

STEP = "  "
CONSTRAINTS = {
    "string": ("maxLength", "minLength", "pattern"),
    "number": ("maximum", "minimum"),
    "integer": ("maximum", "minimum"),
    "array": ("maxItems", "minItems"),
}
UNIONS = {
    "string": "string",
    "number": "number",
    "integer": "number",
    "boolean": "boolean",
    "null": "null",
    "object": "{}",
    "array": "Array<any>",
}
VALUES: Mapping[str, Callable[[Any], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": lambda value: isinstance(value, int | float),
    "integer": lambda value: isinstance(value, int),
    "boolean": lambda value: isinstance(value, bool),
}


class _UntoldError(Exception):
    """The form has no words for a schema."""


def declare_typescript(tools: Sequence[dict[str, Any]]) -> str:
    """All tools as one namespace, keys of objects in order wherever they occur."""
    try:
        functions = [
            tool["function"] for tool in _sorted(tools) if tool.get("type") == "function" and tool.get("function")
        ]
        body = "".join(f"{_Function(function).declare()}\n" for function in functions)
    except (_UntoldError, KeyError, TypeError, AttributeError, ValueError):
        return to_json(tools, compact=True, sort=True)
    return f"# Tools\n\n## functions\nnamespace functions {{\n{body}}}\n" if functions else ""


class _Function:
    """One function. `$defs` found on the way become interfaces in front of it."""

    def __init__(self, function: Mapping[str, Any]) -> None:
        self._function = function
        self._definitions: dict[str, Any] = {}
        self._names_itself = False

    def declare(self) -> str:
        name, description = self._function.get("name", "function"), self._function.get("description")
        parameters = self._function.get("parameters") or {}
        own = self._object(parameters, "")
        interfaces: list[str] = []
        if self._names_itself:
            fields = ",\n".join(text for _, _, text in self._fields(parameters, STEP))
            interfaces.append(f"interface parameters {{\n{fields}\n}}")
            own = "parameters"
        for label, schema in list(self._definitions.items()):
            body = self._type(schema, "")
            interfaces += [*_comment(schema.get("description"), ""), f"interface {label} {body}"]
        return "\n".join([*interfaces, *_comment(description, ""), f"type {name} = (_: {own}) => any;"])

    def _type(self, schema: Any, indent: str) -> str:
        if isinstance(schema, bool):
            return "any" if schema else "null"
        if "$ref" in schema:
            return self._reference(schema["$ref"])
        if "anyOf" in schema:
            return " | ".join([self._type(choice, indent) for choice in schema["anyOf"]])
        if "enum" in schema:
            return _values(schema)
        match schema.get("type"):
            case list() as names:
                return " | ".join([UNIONS[name] for name in names])
            case "object":
                return self._object(schema, indent)
            case "array":
                return self._array(schema, indent)
            case str() as name:
                return "number" if name == "integer" else name
            case _ if not schema:
                return "any"
            case _:
                raise _UntoldError

    def _object(self, schema: Mapping[str, Any], indent: str) -> str:
        self._definitions.update(schema.get("$defs", {}))
        inner = indent + STEP
        rest = schema.get("additionalProperties")
        other = None if rest is None else self._rest(rest, inner)
        fields = [text for _, _, text in sorted(self._fields(schema, inner))]
        if other is not None:
            fields.append(f"{inner}[k: string]: {other}")
        return "{\n" + ",\n".join(fields) + f"\n{indent}}}" if fields else "{}"

    def _rest(self, schema: Any, indent: str) -> str:
        """The type of properties that have no name of their own."""
        if isinstance(schema, bool):
            return "any" if schema else "never"
        return self._type(schema, indent)

    def _fields(self, schema: Mapping[str, Any], indent: str) -> Iterator[tuple[bool, str, str]]:
        """Optional or not, name and text of each property."""
        required = schema.get("required", [])
        for name, value in schema.get("properties", {}).items():
            lines = [*_comments(value, indent)]
            default = value.get("default") if isinstance(value, dict) else None
            if default is not None:
                told = repr(default) if isinstance(default, int | float) else to_json(default)
                lines.append(f"{indent}// Default: {told}")
            optional = name not in required
            lines.append(f"{indent}{name}{'?' if optional else ''}: {self._type(value, indent)}")
            yield optional, name, "\n".join(lines)

    def _array(self, schema: Mapping[str, Any], indent: str) -> str:
        items = schema.get("items") or {}
        comments = _comments(items, indent + STEP)
        if not comments:
            return f"Array<{self._type(items, indent)}>"
        inner = f"{indent}{STEP}{self._type(items, indent + STEP)}"
        return "\n".join(["Array<", *comments, inner, f"{indent}>"])

    def _reference(self, reference: str) -> str:
        if reference == "#":
            self._names_itself = True
            return "parameters"
        name = reference.rpartition("/")[2]
        if not reference.startswith("#/$defs/") or name not in self._definitions:
            raise _UntoldError
        return name


def _comments(schema: Any, indent: str) -> list[str]:
    """The lines in front of a type: its description and the limits its TypeScript cannot hold."""
    if isinstance(schema, bool):
        return []
    lines = _comment(schema.get("description"), indent)
    if not schema.keys() & {"$ref", "anyOf", "enum"} and isinstance(kind := schema.get("type"), str):
        limits = [f"{key}: {schema[key]}" for key in CONSTRAINTS.get(kind, ()) if key in schema]
        lines += [f"{indent}// {', '.join(limits)}"] if limits else []
    return lines


def _comment(text: Any, indent: str) -> list[str]:
    """An empty line stays one, without slashes."""
    return [f"{indent}// {line}" if line else "" for line in text.split("\n")] if text else []


def _values(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        kinds = [name for name in kind if name != "null"] if len(kind) > 1 else kind
        if len(kinds) != 1:
            raise _UntoldError
        kind = kinds[0]
    fits = VALUES.get(kind, lambda _: True)
    if not all(value is None or fits(value) for value in schema["enum"]):
        raise _UntoldError
    return " | ".join([f'"{value}"' if isinstance(value, str) else str(value) for value in schema["enum"]])


def _sorted(value: Any) -> Any:
    """The same JSON with the keys of every object in order."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list | tuple) else value
