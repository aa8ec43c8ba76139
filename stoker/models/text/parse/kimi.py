"""Calls as Kimi writes them: a header that is the call's id, then JSON passed on byte for byte. Owns names and ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from stoker.models.text.parse.json_scan import ObjectScan
from stoker.models.text.parse.output import Output
from stoker.models.text.parse.table import Act, State
from stoker.types.chat import Tool

_HEADER = re.compile(r"(?:functions\.)?(?P<name>.+):(?P<number>[0-9]+)", re.DOTALL)
_NUMBER = re.compile(r"[0-9]*")


class KimiCalls:
    """`history`: calls that the conversation holds already; ids count on from there."""

    quoted = False  # a control token is a mark wherever it comes

    def __init__(self, out: Output, tools: Sequence[Tool], history: int) -> None:
        self._out = out
        self._tools = tools
        self._history = history
        self._ids: set[str] = set()
        self._header: list[str] = []
        self._arguments = ObjectScan()
        self._space: list[str] = []  # white space that may be the end of the arguments
        self._empty = True
        self._nameless: list[str] | None = None  # arguments of a call whose name they must tell

    def act(self, act: Act, mark: str) -> None:
        match act:
            case Act.BEGIN:
                self._header = []
            case Act.START:
                self._start("".join(self._header).strip())
            case Act.CLOSE:
                self._end(complete=True)
            case _:
                self._end(complete=self._empty or self._arguments.whole)

    def text(self, state: State, text: str) -> tuple[int, State]:
        if state is State.NAME:
            self._header.append(text)
        else:
            self._pass_on(text)
        return len(text), state

    def finish(self, state: State, *, stopped: bool) -> None:
        if state is State.ARGUMENTS:
            self._end(complete=not self._empty and self._arguments.whole)

    def _start(self, header: str) -> None:
        self._arguments = ObjectScan()
        self._space = []
        self._empty = True
        self._nameless = None
        if _NUMBER.fullmatch(header):
            self._nameless = []
        else:
            self._out.start(*self._name_and_id(header))

    def _pass_on(self, text: str) -> None:
        """Arguments, without white space at both ends."""
        if self._empty:
            text = text.lstrip()
        body = text.rstrip()
        if body:
            self._empty = False
            self._send("".join(self._space) + body)
            self._space = [text[len(body) :]]
        else:
            self._space.append(text)

    def _send(self, text: str) -> None:
        self._arguments.feed(text)
        if self._nameless is None:
            self._out.arguments(text)
        else:
            self._nameless.append(text)

    def _end(self, *, complete: bool) -> None:
        if complete and self._empty:
            self._send("{}")
        if self._nameless is not None:
            arguments = "".join(self._nameless)
            header = "".join(self._header).strip()
            name = self._named_by(arguments) if self._arguments.whole else None
            if not complete or not (name or header):
                return
            self._out.start(name or header, self._fresh(name or header))
            self._out.arguments(arguments)
        self._out.done(complete=complete, valid=self._arguments.whole)

    def _name_and_id(self, header: str) -> tuple[str, str]:
        form = _HEADER.fullmatch(header)
        declared = {tool.name for tool in self._tools}
        if form and (form["name"] in declared or self._damaged(header) is None):
            native = f"functions.{form['name']}:{form['number']}"
            if native in self._ids:
                return form["name"], self._fresh(form["name"])
            self._ids.add(native)
            return form["name"], native
        name = self._damaged(header) or header
        return name, self._fresh(name)

    def _damaged(self, header: str) -> str | None:
        """The declared name that a header holds which lost its form on the way, the longest if several do."""
        names = [
            tool.name
            for tool in self._tools
            if re.fullmatch(rf"(?:functions[._:]?)?{re.escape(tool.name)}[._:]?[0-9]*", header)
        ]
        return max(names, key=len, default=None)

    def _fresh(self, name: str) -> str:
        number = self._history + self._out.calls
        while (fresh := f"functions.{name}:{number}") in self._ids:
            number += 1
        self._ids.add(fresh)
        return fresh

    def _named_by(self, arguments: str) -> str | None:
        """The tool whose parameters have the keys of these arguments: all required ones, and none undeclared."""
        try:
            keys = set(msgspec.json.decode(arguments, type=dict[str, msgspec.Raw]))
        except msgspec.MsgspecError:
            return None
        fits = [tool.name for tool in self._tools if _fits(keys, tool.parameters or {})]
        return fits[0] if len(fits) == 1 else None


def _fits(keys: set[str], parameters: dict[str, Any]) -> bool:
    properties, required = parameters.get("properties"), parameters.get("required")
    return (
        isinstance(properties, dict)
        and keys <= set(properties)
        and (not isinstance(required, list) or keys >= {key for key in required if isinstance(key, str)})
    )
