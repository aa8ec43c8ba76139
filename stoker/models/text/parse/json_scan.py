"""JSON, followed character by character: where a value ends, what kind it is, and whether it is JSON at all (RFC 8259,
strictly). Owns no value: nothing but the nesting is kept, so that arguments of any length cost no memory and no
recursion."""

from __future__ import annotations

import re

_WHITE = " \t\n\r"
_SPACE = re.compile(r"[ \t\n\r]*")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_NUMBER_PART = re.compile(r"[-+.0-9eE]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<real>(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?)")
_WORDS = {"t": ("true", "boolean"), "f": ("false", "boolean"), "n": ("null", "null")}
_HEX = frozenset("0123456789abcdefABCDEF")

# What may come next.
_VALUE, _FIRST, _KEY, _FIRST_KEY, _COLON, _COMMA, _STRING, _ESCAPE, _HEXES, _NUMBER_TAIL, _WORD, _END = range(12)


class JsonScan:
    """One JSON value with white space before it.

    kind     its type as JSON schema names it, once its first character came ("number" until it is known to be integer)
    done     it is complete; what follows is not read
    broken   it is not JSON; what was not consumed cannot follow
    """

    def __init__(self) -> None:
        self.kind: str | None = None
        self.done = False
        self.broken = False
        self._expect = _VALUE
        self._stack: list[str] = []  # the closing brackets that are due
        self._key = False  # the string that is open is a key
        self._rest = ""  # of a word
        self._digits: list[str] = []
        self._hexes = 0

    @property
    def quoted(self) -> bool:
        """Inside of a string."""
        return self._expect in (_STRING, _ESCAPE, _HEXES)

    def feed(self, text: str, start: int = 0) -> int:
        """Follow `text` from `start`; return where it stopped: at its end, behind the value, or where JSON breaks."""
        at, end = start, len(text)
        while at < end and not (self.done or self.broken):
            at = self._read(text, at)
        return at

    def finish(self) -> None:
        """No more text comes. Only a number ends by that."""
        if self._expect == _NUMBER_TAIL:
            self._end_number()
        if not self.done:
            self.broken = True

    def _read(self, text: str, at: int) -> int:
        expect = self._expect
        if expect == _STRING:
            return self._in_string(text, at)
        if expect == _ESCAPE:
            return self._escape(text[at], at)
        if expect == _HEXES:
            return self._hex(text[at], at)
        if expect == _WORD:
            return self._in_word(text, at)
        if expect == _NUMBER_TAIL:
            part = _NUMBER_PART.match(text, at)
            assert part is not None
            self._digits.append(part[0])
            if part.end() < len(text):
                self._end_number()
            return part.end()
        space = _SPACE.match(text, at)
        assert space is not None
        at = space.end()
        return at if at == len(text) else self._structure(text[at], at)

    def _structure(self, char: str, at: int) -> int:
        expect = self._expect
        if expect in (_FIRST, _FIRST_KEY, _COMMA) and self._stack and char == self._stack[-1]:
            self._stack.pop()
            self._end_value()
        elif expect == _COMMA and char == ",":
            self._expect = _KEY if self._stack[-1] == "}" else _VALUE
        elif expect == _COLON and char == ":":
            self._expect = _VALUE
        elif expect in (_KEY, _FIRST_KEY) and char == '"':
            self._key = True
            self._expect = _STRING
        elif expect in (_VALUE, _FIRST):
            return self._begin_value(char, at)
        else:
            return self._break(at)
        return at + 1

    def _begin_value(self, char: str, at: int) -> int:
        if char == "{":
            self._stack.append("}")
            kind, self._expect = "object", _FIRST_KEY
        elif char == "[":
            self._stack.append("]")
            kind, self._expect = "array", _FIRST
        elif char == '"':
            self._key = False
            kind, self._expect = "string", _STRING
        elif char in _WORDS:
            word, kind = _WORDS[char]
            self._rest = word[1:]
            self._expect = _WORD
        elif char in "-0123456789":
            self._digits = [char]
            kind, self._expect = "number", _NUMBER_TAIL
        else:
            return self._break(at)
        if self.kind is None:
            self.kind = kind
        return at + 1

    def _end_value(self) -> None:
        self.done = not self._stack
        self._expect = _END if self.done else _COMMA

    def _end_number(self) -> None:
        number = _NUMBER.fullmatch("".join(self._digits))
        if number is None:
            self.broken = True
            return
        if not self._stack and not number["real"]:
            self.kind = "integer"
        self._end_value()

    def _in_string(self, text: str, at: int) -> int:
        plain = _PLAIN.match(text, at)
        assert plain is not None
        at = plain.end()
        if at == len(text):
            return at
        if text[at] == "\\":
            self._expect = _ESCAPE
        elif text[at] == '"':
            if self._key:
                self._expect = _COLON
            else:
                self._end_value()
        else:
            return self._break(at)
        return at + 1

    def _escape(self, char: str, at: int) -> int:
        if char == "u":
            self._hexes = 4
            self._expect = _HEXES
        elif char in '"\\/bfnrt':
            self._expect = _STRING
        else:
            return self._break(at)
        return at + 1

    def _hex(self, char: str, at: int) -> int:
        if char not in _HEX:
            return self._break(at)
        self._hexes -= 1
        if not self._hexes:
            self._expect = _STRING
        return at + 1

    def _in_word(self, text: str, at: int) -> int:
        if text[at] != self._rest[0]:
            return self._break(at)
        self._rest = self._rest[1:]
        if not self._rest:
            self._end_value()
        return at + 1

    def _break(self, at: int) -> int:
        self.broken = True
        return at


class ObjectScan:
    """Whether a text, followed as it comes, is one JSON object with nothing but white space around it."""

    def __init__(self) -> None:
        self._scan = JsonScan()
        self._more = False

    @property
    def whole(self) -> bool:
        """The object is complete, as far as the text goes by now."""
        return self._scan.kind == "object" and self._scan.done and not self._more

    def feed(self, text: str) -> None:
        end = self._scan.feed(text)
        self._more = self._more or bool(text[end:].strip(_WHITE))


def json_kind(text: str) -> str | None:
    """The type of the one JSON value that `text` is, white space around it aside; None if it is not JSON."""
    scan = JsonScan()
    end = scan.feed(text)
    if not scan.done:
        scan.finish()
    return scan.kind if scan.done and not text[end:].strip(_WHITE) else None
