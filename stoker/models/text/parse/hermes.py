"""Calls as hermes models write them: blocks of JSON objects with a name and arguments. Owns following the objects
member by member: arguments flow as they are written, and a block that is no call goes back into the text."""

from __future__ import annotations

import json
from enum import Enum, auto

from stoker.models.text.parse.json_scan import JsonScan, ObjectScan, json_kind
from stoker.models.text.parse.output import Output
from stoker.models.text.parse.table import Act, State

_SPACE = " \t\n\r"
_ARGUMENTS = ("arguments", "parameters")


class _At(Enum):
    """What comes next in a block."""

    ELEMENT = auto()  # an object, or the list of them
    FIRST_MEMBER = auto()  # a key or the object's end
    MEMBER = auto()
    COLON = auto()
    VALUE = auto()
    MEMBER_END = auto()  # a comma or the object's end
    ELEMENT_END = auto()  # a comma or the list's end


class HermesCalls:
    def __init__(self, out: Output) -> None:
        self._out = out
        self._raw: list[str] = []  # text that is no call unless more shows that it is one
        self._calls = 0  # in this block
        self._listed = False  # the block is a list
        self._begin_element()

    def _begin_element(self) -> None:
        self._at = _At.ELEMENT
        self._scan: JsonScan | None = None  # of the key or value that is open
        self._text: list[str] = []  # of it
        self._key = ""
        self._started = False
        self._sent = False  # the call has argument text
        self._given = False  # its arguments are complete
        self._valid = True  # and an object
        self._loose: ObjectScan | None = None  # arguments that began where JSON broke
        self._waiting: str | None = None  # arguments that came before the name

    @property
    def quoted(self) -> bool:
        return self._scan is not None and self._scan.quoted

    def act(self, act: Act, mark: str) -> None:
        if act is Act.BEGIN:
            self._raw = [mark]
            self._calls = 0
            self._listed = False
            self._begin_element()
        elif self._started:
            self._end(complete=act is Act.CLOSE or self._whole())
        else:
            self._give_back(mark if act is Act.CLOSE and not self._calls else "")

    def text(self, state: State, text: str) -> tuple[int, State]:
        if state is State.TAIL:
            return self._after_call(text)
        if state is State.BREAK:
            return self._after_break(text)
        at = 0
        while at < len(text) and state is State.JSON:
            before = at
            at, state = self._read(text, at) if self._scan is None else self._read_string_or_value(text, at)
            if not self._started and (self._raw or text[before] == "{"):
                self._raw.append(text[before:at])
        return at, state

    def finish(self, state: State, *, stopped: bool) -> None:
        if state in (State.JSON, State.BREAK) and self._started:
            self._end(complete=stopped and self._whole())

    def _read(self, text: str, at: int) -> tuple[int, State]:
        """One character between values: how far it came, and State.BREAK where this cannot be a call."""
        char = text[at]
        if char in _SPACE:
            return at + 1, State.JSON
        match self._at, char:
            case _At.ELEMENT, "[" if not self._listed and not self._calls:
                self._listed = True
            case _At.ELEMENT, "{":
                self._at = _At.FIRST_MEMBER
            case ((_At.FIRST_MEMBER | _At.MEMBER), '"'):
                self._open(_At.COLON)
                return at, State.JSON
            case _At.COLON, ":":
                self._open(_At.VALUE)
            case _At.MEMBER_END, ",":
                self._at = _At.MEMBER
            case ((_At.FIRST_MEMBER | _At.MEMBER_END), "}") if self._started:
                self._end(complete=True)
                self._at = _At.ELEMENT_END
                return at + 1, State.JSON if self._listed else State.TAIL
            case _At.ELEMENT_END, ",":
                self._begin_element()
            case _At.ELEMENT_END, "]":
                return at + 1, State.TAIL
            case _:
                return at, State.BREAK
        return at + 1, State.JSON

    def _open(self, at: _At) -> None:
        """A key begins (its colon is next), or a value."""
        self._at = at
        self._scan = JsonScan()
        self._text = []

    def _read_string_or_value(self, text: str, at: int) -> tuple[int, State]:
        """The rest of the open key or value, as far as it is here."""
        scan = self._scan
        assert scan is not None
        fresh = scan.kind is None
        end = scan.feed(text, at)
        part = text[at:end].lstrip(_SPACE) if fresh else text[at:end]
        if self._at is not _At.VALUE or self._key == "name":
            self._text.append(part)
        elif self._key in _ARGUMENTS and not self._given:
            if self._started and scan.kind == "object":
                self._send(part)
            else:
                self._text.append(part)
        if scan.broken:
            self._scan = None
            return end, State.BREAK
        if not scan.done:
            return end, State.JSON
        self._scan = None
        if self._at is _At.COLON:
            self._key = _string(self._text) or ""
            return end, State.JSON
        self._at = _At.MEMBER_END
        if self._key == "name":
            return end, self._name(scan)
        if self._key in _ARGUMENTS and not self._given:
            self._whole_arguments(scan)
        return end, State.JSON

    def _name(self, scan: JsonScan) -> State:
        if self._started:
            return State.JSON
        name = _string(self._text) if scan.kind == "string" else None
        if not name:
            return State.BREAK
        self._out.start(name)
        self._started = True
        self._raw = []
        if self._waiting is not None:
            self._send(self._waiting)
        return State.JSON

    def _whole_arguments(self, scan: JsonScan) -> None:
        """The value of the arguments is complete. Unless it was sent as it came, find out what to send."""
        if scan.kind == "null":
            return
        self._given = True
        self._valid = scan.kind == "object"
        if self._sent:
            return
        text = "".join(self._text)
        if scan.kind == "string" and (inner := _string([text])) and json_kind(inner) == "object":
            text, self._valid = inner, True
        if self._started:
            self._send(text)
        else:
            self._waiting = text

    def _after_break(self, text: str) -> tuple[int, State]:
        """JSON broke: before the name, and it was text all along; or later, and what the model wrote is passed on,
        unless the arguments are complete without it."""
        if not self._started:
            self._give_back("")
            return 0, State.REST if self._calls else State.CONTENT
        if not (self._given and self._valid):
            self._valid = False
            if self._loose is None and not self._sent:
                self._loose = ObjectScan()
            if self._loose is not None:
                self._loose.feed(text)
            self._send(text)
        return len(text), State.BREAK

    def _after_call(self, text: str) -> tuple[int, State]:
        rest = text.lstrip(_SPACE + ",")
        if not rest:
            return len(text), State.TAIL
        if rest[0] != "{":
            return len(text) - len(rest), State.REST
        self._listed = False
        self._begin_element()
        return len(text) - len(rest), State.JSON

    def _send(self, text: str) -> None:
        self._sent = self._sent or bool(text)
        self._out.arguments(text)

    def _whole(self) -> bool:
        return (self._given and self._valid) or (self._loose is not None and self._loose.whole)

    def _end(self, *, complete: bool) -> None:
        if complete and not self._sent:
            self._send("{}")
            self._given = True
        self._out.done(complete=complete, valid=self._whole())
        self._calls += 1
        self._begin_element()

    def _give_back(self, mark: str) -> None:
        self._out.content.write("".join(self._raw) + mark)
        self._raw = []
        self._scan = None


def _string(parts: list[str]) -> str | None:
    """A JSON string's text; None if it has half of a surrogate pair, which no UTF-8 can carry."""
    text: str = json.loads("".join(parts))
    return None if any("\ud800" <= char < "\ue000" for char in text) else text
