"""Pieces of grammar text in llguidance's notation of Lark. Knows no family and no schema."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping


class Notation:
    """`control` maps the text of a vocabulary's control tokens to their ids: a mark that is one is named by its id, any
    other is ordinary text."""

    def __init__(self, control: Mapping[str, int]) -> None:
        self.control = control
        self._rules: list[str] = []
        self._count = 0

    def mark(self, text: str) -> str:
        index = self.control.get(text)
        return literal(text) if index is None else f"<[{index}]>"

    def rule(self, body: str, *, kind: str = "r", options: str = "") -> str:
        """A new rule with `body`; returns its name."""
        self._count += 1
        name = f"{kind}{self._count}"
        self._rules.append(f"{name}{options}: {body}")
        return name

    def terminal(self, body: str) -> str:
        """A new terminal: one lexeme, a regular expression."""
        return self.rule(body, kind="T")

    def text_until(self, end: str) -> str:
        """Any text and the mark that ends it."""
        if end in self.control:
            return f"{self.terminal(ANY)} {self.mark(end)}"
        return self.rule(f"/(?s:.*){regex_literal(end)}/", options="[lazy]")

    def json(self, schema: str) -> str:
        return self.rule(f"%json {schema}", kind="j")

    def grammar(self, start: str) -> str:
        return "\n".join((f"start: {start}", *self._rules, ""))


ANY = "/(?s:.*)/"


def literal(text: str) -> str:
    return json.dumps(text) if text else '""'


def regex_literal(text: str) -> str:
    """`text` as it stands, within the slashes of a regular expression."""
    return "".join(character if character.isalnum() else f"\\x{{{ord(character):x}}}" for character in text)


def either(alternatives: Iterable[str]) -> str:
    return " | ".join(alternatives)
