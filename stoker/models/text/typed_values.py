"""Arguments as GLM writes them, key by key: text as it stands for strings, JSON for everything else.

Owns what text a schema's value may be so that the parser, which goes by the same schema, reads back a value that the
schema accepts. A schema that cannot be taken apart into properties leaves keys and values free, one whose string cannot
be told from its other types leaves the value free: the text is then right in form, and the schema is only hoped for.
"""

from __future__ import annotations

from ast import literal_eval
from typing import Any

import msgspec
from llguidance import regex_to_lark

from stoker.models.text.lark import ANY, Notation, either, literal
from stoker.models.text.schema import Schema, prepare, references, resolve

KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
_TYPES = ("string", "integer", "number", "boolean", "null", "array", "object")
_COMBINED = {"allOf", "anyOf", "oneOf", "not", "if", "$ref", "minProperties", "maxProperties", "patternProperties"}
_NOTES = {"title", "description", "default", "examples", "deprecated", "$comment", "format", "readOnly", "writeOnly"}
_MAX_DEPTH = 16
_NUMBER = r"/[\s(]*[-+]?[0-9.][0-9a-fA-FxXoO_.]*([eE][-+]?[0-9_]*)?[\s)]*/"
_LOOKS_LIKE = {  # texts that the parser would take for a value of the type
    "integer": _NUMBER,
    "number": _NUMBER,
    "array": r"/(?s:\s*[\[(].*)/",
    "object": r"/(?s:\s*\{.*)/",
}


class TypedValues:
    """The arguments of one tool. `between` is what stands between two tags."""

    def __init__(self, to: Notation, schema: Schema, between: str) -> None:
        self._to = to
        self._root: dict[str, Any] = schema if isinstance(schema, dict) else {}
        self._between = between

    def pairs(self) -> str:
        """Rule of all keys and values, each followed by what stands between tags."""
        root = self._follow(self._root)
        if not isinstance(root, dict) or _COMBINED & root.keys():
            return self._free()
        properties, required = root.get("properties", {}), root.get("required") or []
        if (
            not isinstance(properties, dict)
            or not isinstance(required, list)
            or set(map(str, required)) - {*properties}
        ):
            return self._free()
        if not properties:
            declared = "properties" in root and "additionalProperties" not in root
            return self._to.rule('""') if declared or root.get("additionalProperties") is False else self._free()
        pairs = ((name, self._pair(literal(name), self._value(schema))) for name, schema in properties.items())
        return self._to.rule(" ".join(pair if name in required else f"{pair}?" for name, pair in pairs))

    def _free(self) -> str:
        """Any keys and values."""
        pair = self._pair(self._to.terminal(r"/[^<>\n]{1,64}/"), self._to.text_until(VALUE_END))
        return self._to.rule(f"{pair}*")

    def _pair(self, key: str, value: str) -> str:
        to = self._to
        return to.rule(
            f"{to.mark(KEY)} {key} {to.mark(KEY_END)} {self._between} {to.mark(VALUE)} {value} {self._between}"
        )

    def _value(self, schema: Any) -> str:
        """Rule of a value with the tag that ends it."""
        kinds = _Kinds()
        self._collect(schema, kinds, 0)
        to = self._to
        if kinds.free or not (kinds.text or kinds.others):
            return to.text_until(VALUE_END)
        others = list(kinds.others)
        if kinds.text:
            unlike = sorted({_LOOKS_LIKE[kind] for kind in kinds.types if kind in _LOOKS_LIKE})
            if kinds.text == [ANY] and not others and not unlike:
                return to.text_until(VALUE_END)
            others += (to.terminal(" & ".join((text, *(f"~{pattern}" for pattern in unlike)))) for text in kinds.text)
        return to.rule(f"({either(others)}) {to.mark(VALUE_END)}")

    def _collect(self, schema: Any, kinds: _Kinds, depth: int) -> None:
        """Add what `schema` accepts to `kinds`."""
        schema = self._follow(schema)
        if schema is False:
            return
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            kinds.free = True
            return
        own = schema.keys() - _NOTES - {"$defs", "definitions"}
        match own:
            case _ if "const" in own or "enum" in own:
                self._add_constants(schema, kinds)
            case _ if (branch := own & {"anyOf", "oneOf"}) and own <= {*branch, "type"} and len(branch) == 1:
                for item in _listed(schema[branch.pop()]):
                    self._collect(item, kinds, depth + 1)
            case _ if own == {"allOf"} and len(_listed(schema["allOf"])) == 1:
                self._collect(schema["allOf"][0], kinds, depth + 1)
            case _ if own & _COMBINED - {"minProperties", "maxProperties", "patternProperties"} or "type" not in own:
                kinds.free = True
            case _:
                self._add_types(schema, kinds)

    def _add_types(self, schema: dict[str, Any], kinds: _Kinds) -> None:
        types = [kind for kind in _listed(schema["type"]) if kind in _TYPES]
        if "string" in types:
            kinds.text.append(_string(schema))
        others = [kind for kind in types if kind != "string"]
        if others:
            kinds.types.update(others)
            whole = {**schema, "type": others}
            if not all(ref.startswith(("#/$defs/", "#/definitions/")) for ref in references(whole)):
                whole = {"type": others}
            defs = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
            kinds.others.append(self._to.json(prepare({**whole, **defs}, lenient=True)))

    def _add_constants(self, schema: dict[str, Any], kinds: _Kinds) -> None:
        values = [schema["const"]] if "const" in schema else _listed(schema["enum"])
        texts = [value for value in values if isinstance(value, str)]
        others = [value for value in values if not isinstance(value, str)]
        kinds.others += (literal(msgspec.json.encode(value).decode()) for value in others)
        kinds.others += (literal(text) for text in texts if VALUE_END not in text and not (others and _is_data(text)))

    def _follow(self, schema: Any) -> Any:
        """`schema`, or what it refers to if it does nothing else."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, dict) or "$ref" not in schema:
                return schema
            if schema.keys() - _NOTES - {"$ref", "$defs", "definitions"}:
                return schema
            try:
                schema = resolve(self._root, schema["$ref"])
            except (LookupError, TypeError, ValueError):
                return True
        return True


class _Kinds:
    """What a value may be: terminals of texts, other rules, the types that these are of; `free` is anything."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.others: list[str] = []
        self.types: set[str] = set()
        self.free = False


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _string(schema: dict[str, Any]) -> str:
    """The body of a terminal for a string."""
    low, high, pattern = schema.get("minLength", 0), schema.get("maxLength"), schema.get("pattern")
    parts: list[str] = []
    if isinstance(low, int) and isinstance(high, int | None) and (low or high is not None):
        parts.append(f"/(?s:.{{{low},{'' if high is None else high}}})/")
    if isinstance(pattern, str) and (whole := _anchored(pattern)) is not None:
        parts.append(f"/{regex_to_lark(whole, 'dw')}/")
    return " & ".join(parts) or ANY


def _anchored(pattern: str) -> str | None:
    """The pattern, which JSON schema looks for anywhere in a text, as one that a whole text matches; None if that would
    take more than its first and last character."""
    inner = pattern.removeprefix("^")
    ends = inner.endswith("$") and not inner.endswith(r"\$")
    inner = inner[:-1] if ends else inner
    if "^" in inner.replace("[^", "") or "$" in inner or ("|" in inner and (ends or inner != pattern)):
        return None
    before = "" if pattern.startswith("^") else "(?s:.*)"
    return f"{before}(?:{inner}){'' if ends else '(?s:.*)'}"


def _is_data(text: str) -> bool:
    """Would the parser, where other types than strings are allowed too, take the text for one of those?"""
    for read in (msgspec.json.decode, literal_eval):
        try:
            read(text)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        return True
    return False
