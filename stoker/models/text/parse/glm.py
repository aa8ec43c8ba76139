"""Calls as GLM writes them: a name, then keys and values between tags. Owns turning them into JSON: a value that can
only be a string flows while it is written, any other waits for its end, when schema and text decide what it is."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stoker.models.text.parse.output import Output
from stoker.models.text.parse.schema import ONLY_STRING, ArgumentTypes, Types, json_of_value, json_string
from stoker.models.text.parse.table import Act, State
from stoker.types.chat import Tool

_SECOND_WORD = re.compile(r"\S\s+(?=\S)")


class GlmCalls:
    quoted = False  # the table says in which states a control token is data

    def __init__(self, out: Output, tools: Sequence[Tool]) -> None:
        self._out = out
        self._tools = {tool.name: tool for tool in tools}
        self._types = ArgumentTypes(None)
        self._allowed: Types = None
        self._tag = ""
        self._name: list[str] = []
        self._seen = ""  # the same in short: x for a word, a space for the white space after it
        self._open = False
        self._members = 0
        self._key: list[str] = []
        self._value: list[str] | None = None  # None: the value flows as a string

    def act(self, act: Act, mark: str) -> None:
        match act:
            case Act.BEGIN:
                self._tag, self._name, self._seen = mark, [], ""
            case Act.START:
                self._start("".join(self._name).strip())
            case Act.NEW_KEY:
                self._key = []
            case Act.OPEN_VALUE:
                self._open_value()
            case Act.END_VALUE:
                self._end_value()
            case Act.CLOSE:
                self._send("}" if self._members else "{}")
                self._end(complete=True)
            case Act.CUT:
                self._end(complete=False)

    def text(self, state: State, text: str) -> tuple[int, State]:
        match state:
            case State.NAME:
                return self._read_name(text)
            case State.KEY:
                self._key.append(text)
            case State.KEY_DONE:
                if text.isspace():
                    return len(text), state
                self._open_value()  # its tag is missing
                return len(text) - len(text.lstrip()), State.VALUE
            case _ if self._value is None:
                self._send(json_string(text)[1:-1])
            case _:
                self._value.append(text)
        return len(text), state

    def finish(self, state: State, *, stopped: bool) -> None:
        if state is State.BETWEEN and stopped:
            self.act(Act.CLOSE, "")
        elif state in (State.KEY, State.KEY_DONE, State.VALUE, State.DOUBT, State.BETWEEN):
            self._end(complete=False)

    def _read_name(self, text: str) -> tuple[int, State]:
        """A name has no white space inside. A second word shows that the tag is no call: all of it is content."""
        seen = self._seen + text
        second = _SECOND_WORD.search(seen)
        if second is None:
            self._name.append(text)
            self._seen = ("x" if seen.strip() else "") + (" " if seen[-1].isspace() else "")
            return len(text), State.NAME
        used = second.end() - len(self._seen)
        self._out.content.write("".join((self._tag, *self._name, text[:used])))
        return used, State.CONTENT

    def _start(self, name: str) -> None:
        self._members = 0
        self._open = bool(name)
        if name:
            tool = self._tools.get(name)
            self._types = ArgumentTypes(tool.parameters if tool else None)
            self._out.start(name)

    def _open_value(self) -> None:
        key = "".join(self._key).strip()
        self._allowed = self._types.of(key)
        self._send(f"{',' if self._members else '{'}{json_string(key)}:")
        self._members += 1
        self._value = []
        if self._allowed == ONLY_STRING:
            self._value = None
            self._send('"')

    def _end_value(self) -> None:
        self._send('"' if self._value is None else json_of_value("".join(self._value), self._allowed))

    def _send(self, text: str) -> None:
        if self._open:
            self._out.arguments(text)

    def _end(self, *, complete: bool) -> None:
        if self._open:
            self._out.done(complete=complete, valid=complete)
        self._open = False
