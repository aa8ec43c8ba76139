"""How each family writes a tool call, as grammar: declared names, and arguments that their schemas accept.

Owns the families' syntax. Does not own where calls may stand in an answer (`grammar.py`) nor what a schema may contain
(`schema.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stoker.models.text.lark import Notation, either, literal
from stoker.models.text.schema import Schema, prepare
from stoker.models.text.typed_values import TypedValues
from stoker.types.chat import Tool

MAX_CALLS, FORCED_CALLS = 32, 8  # in one answer: as the model likes, and where it must call a tool
_NUMBERED, _HEADS = 8, 256  # calls whose number is fixed, and their heads for all tools; later ones have any number
_NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}


class Calls(NamedTuple):
    """What the region of calls may hold. `first` is what begins it: the mark itself, or text up to it. `most` calls in
    one answer, after `before` calls in the conversation so far."""

    to: Notation
    tools: Sequence[tuple[Tool, Schema]]
    first: str
    most: int
    before: int

    def several(self, mark: str, call: str, gap: str) -> str:
        """Rule of `call`s, each behind its mark, with `gap` between them."""
        head = f"{self.first} {call}"
        more = f" ({gap} {mark} {call}){{0,{self.most - 1}}}" if self.most > 1 else ""
        return self.to.rule(head + more)


def arguments_schema(tool: Tool) -> Schema:
    """The schema of a tool's arguments: an object, whatever else the client says of it; none declared is none taken."""
    if not tool.parameters:
        return _NO_ARGUMENTS
    if tool.parameters.keys() & {"$ref", "anyOf", "oneOf", "allOf"}:
        return tool.parameters
    return {**tool.parameters, "type": "object"}


def hermes(calls: Calls) -> str:
    """`<tool_call>` {"name": ..., "arguments": {...}} `</tool_call>`, on lines of their own."""
    to = calls.to
    gap = to.terminal(r"/\n?/")
    bodies: list[str] = []
    for tool, schema in calls.tools:
        head = to.terminal(f'/\\{{ ?"name": ?/ {literal(_quoted(tool.name))} /, ?"arguments": ?/')
        bodies.append(to.rule(f"{head} {_json(to, tool, schema)} {literal('}')}"))
    call = to.rule(f"{gap} ({either(bodies)}) {gap} {to.mark('</tool_call>')}")
    return calls.several(to.mark("<tool_call>"), call, gap)


def kimi(calls: Calls) -> str:
    """A section of calls with ids `functions.NAME:N`, N counting the calls of the conversation."""
    to = calls.to
    begin, middle, end = map(to.mark, ("<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"))
    arguments = [(tool, _json(to, tool, schema)) for tool, schema in calls.tools]

    def call(number: str) -> str:
        heads = (f"{literal(f'functions.{tool.name}:')} {number} {middle} {json}" for tool, json in arguments)
        return to.rule(f"{begin} ({either(heads)}) {end}")

    numbered = min(calls.most, _NUMBERED, max(1, _HEADS // len(arguments)))
    any_number = to.terminal("/[0-9]{1,4}/")
    rest = f"{call(any_number)}{{0,{calls.most - numbered}}}" if calls.most > numbered else ""
    for number in reversed(range(numbered)):
        one = call(literal(str(calls.before + number)))
        rest = f"{one} ({to.rule(rest)})?" if rest else one
    return to.rule(f"{calls.first} {rest} {to.mark('<|tool_calls_section_end|>')}")


def glm(calls: Calls) -> str:
    """`<tool_call>` name (`<arg_key>` key `</arg_key>` `<arg_value>` value `</arg_value>`)* `</tool_call>`."""
    return _glm(calls, "")


def glm_lines(calls: Calls) -> str:
    """The same with a line break after the name and between tags."""
    return _glm(calls, literal("\n"))


def _glm(calls: Calls, between: str) -> str:
    to = calls.to
    bodies = [
        to.rule(f"{literal(tool.name)} {between} {TypedValues(to, schema, between).pairs()}")
        for tool, schema in calls.tools
    ]
    call = to.rule(f"({either(bodies)}) {to.mark('</tool_call>')}")
    return calls.several(to.mark("<tool_call>"), call, between)


def _json(to: Notation, tool: Tool, schema: Schema) -> str:
    return to.json(prepare(schema, lenient=tool.strict is not True))


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()


class Syntax(NamedTuple):
    """`trigger` is the mark that begins the region of calls."""

    trigger: str
    region: Callable[[Calls], str]


SYNTAX: Mapping[str, Syntax] = {
    "kimi_k2": Syntax("<|tool_calls_section_begin|>", kimi),
    "kimi_k25": Syntax("<|tool_calls_section_begin|>", kimi),
    "glm45": Syntax("<tool_call>", glm_lines),
    "glm47": Syntax("<tool_call>", glm),
    "hermes": Syntax("<tool_call>", hermes),
}
