"""Python literals as JSON: `{'a': True}` -> `{"a": true}`. A model that was trained on Python writes them. Nothing is
evaluated, and nothing recurses: the text is translated token by token, and whoever asks checks that JSON came out."""

from __future__ import annotations

import json
import math
import re

_TOKEN = re.compile(
    r"""\s*+(?:
        (?P<string>'(?:[^'\\\n]++|\\.)*+'|"(?:[^"\\\n]++|\\.)*+")
      | (?P<word>True|False|None)\b
      | (?P<number>[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)
      | (?P<mark>[][(){},:])
      | (?P<end>\Z)
    )""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(
    r"""\\(?:(?P<short>[\n'"\\abfnrtv])|(?P<octal>[0-7]{1,3})
      |x(?P<x>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})|U(?P<U>[0-9a-fA-F]{8}))""",
    re.VERBOSE,
)
_SHORT = {"\n": "", "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_BRACKETS = {"(": "[", ")": "]"}


def json_of_literal(text: str) -> str | None:
    """JSON for a Python literal; None if `text` is none. What is no literal as a whole may come out as no JSON."""
    parts: list[str] = []
    at = 0
    last = None
    while token := _TOKEN.match(text, at):
        at = token.end()
        kind, value = token.lastgroup, token[token.lastgroup or 0]
        if kind == "end":
            return "".join(parts)
        if kind != "mark" and last not in (None, "mark"):
            return None  # two values side by side, which must not become one
        last = kind
        if kind == "string":
            value = json.dumps(_ESCAPE.sub(_unescaped, value[1:-1]), ensure_ascii=False)
        elif kind == "word":
            value = _WORDS[value]
        elif kind == "number":
            value = _number(value)
        else:
            value = _BRACKETS.get(value, value)
            if value in ("]", "}") and parts and parts[-1] == ",":
                parts.pop()
        parts.append(value)
    return None


def _unescaped(escape: re.Match[str]) -> str:
    if short := escape["short"]:
        return _SHORT.get(short, short)
    if escape["octal"]:
        return chr(int(escape["octal"], 8))
    code = int(escape["x"] or escape["u"] or escape["U"], 16)
    return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else escape[0]


def _number(text: str) -> str:
    """Python allows `+1`, `.5` and `5.`; what JSON allows stays as it is."""
    text = text.removeprefix("+")
    if not (text.startswith((".", "-.")) or re.search(r"\.(?:[eE]|\Z)", text)):
        return text
    number = float(text)
    return repr(number) if math.isfinite(number) else text
