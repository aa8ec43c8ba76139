"""Pieces of output -> text and marks, incrementally. Owns the text that is held back because it may be the beginning
of a mark; knows nothing of what a mark means."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stoker.models.text.parse.format import Piece
from stoker.models.text.parse.table import Mark

_LONGEST_TEXT = 4096  # characters in one token; whoever uses little of a token and gives the rest back copies no more


class Token(NamedTuple):
    """Ordinary text, or a mark, or (no mark, but `control`) a control token that no format knows."""

    text: str
    mark: Mark | None
    control: bool


class Scanner:
    """Finds marks in ordinary text. `last` are those that count only as the very last thing of the output."""

    def __init__(self, marks: Mapping[str, Mark], last: frozenset[str] = frozenset()) -> None:
        self.marks = marks
        self.last = last
        spellings = sorted(marks, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, spellings))) if spellings else None
        self._first = re.compile(f"[{re.escape(''.join({text[0] for text in spellings}))}]" if spellings else r"(?!)")
        self._beginnings = frozenset(text[:size] for text in spellings for size in range(1, len(text)))
        self._longest = max(map(len, spellings), default=1) - 1

    def find(self, text: str, start: int) -> re.Match[str] | None:
        """The first mark at or after `start`."""
        return self._pattern.search(text, start) if self._pattern else None

    def plain(self, text: str) -> bool:
        """Nothing in `text` begins as a mark does."""
        return self._first.search(text) is None

    def held(self, text: str, start: int) -> int:
        """How many characters at the end of `text`, from `start` on, may be the beginning of a mark."""
        for match in self._first.finditer(text, max(start, len(text) - self._longest)):
            if text[match.start() :] in self._beginnings:
                return len(text) - match.start()
        return 0


class Lexer:
    """One output. Linear in it, however it is cut: each scanner looks at each character a bounded number of times."""

    def __init__(self, known: Mapping[str, Mark]) -> None:
        """`known`: what control tokens mean, by their text."""
        self._known = known
        self._queue: deque[Piece] = deque()
        self._start = 0  # of what is unread in the queue's first piece
        self._found: dict[Scanner, re.Match[str] | None] = {}  # in the first piece

    @property
    def empty(self) -> bool:
        """Nothing is unread."""
        return not self._queue

    def feed(self, pieces: Iterable[Piece]) -> None:
        """More output. An ordinary piece joins the ordinary text that is still unread before it."""
        run: list[str] = []
        for text, control in pieces:
            if not control:
                run.append(text)
                continue
            self._append("".join(run))
            run.clear()
            self._queue.append((text, True))
        self._append("".join(run))

    def _append(self, text: str) -> None:
        if not text:
            return
        if self._queue and not self._queue[-1][1]:
            unread = self._queue.pop()[0]
            if not self._queue:
                unread = unread[self._start :]
                self._start = 0
                self._found.clear()
            text = unread + text
        self._queue.append((text, False))

    def next(self, scanner: Scanner, *, final: bool) -> Token | None:
        """The next token; None if more output is needed to tell. `final`: no more will come."""
        while self._queue:
            text, control = self._queue[0]
            if control:
                self._drop()
                return Token(text, self._known.get(text), True)
            start = self._start
            if start == len(text):
                self._drop()
                continue
            mark = self._mark(scanner, text)
            if mark is None:
                end = len(text)
                if len(self._queue) == 1 and not final:
                    end -= scanner.held(text, start)
            elif mark.start() > start:
                end = mark.start()
            elif mark[0] not in scanner.last or (mark.end() == len(text) and len(self._queue) == 1 and final):
                self._start = mark.end()
                return Token(mark[0], scanner.marks[mark[0]], False)
            elif mark.end() < len(text) or len(self._queue) > 1:
                end = mark.end()
            else:
                return None
            if end == start:
                return None
            end = min(end, start + _LONGEST_TEXT)
            self._start = end
            return Token(text[start:end], None, False)
        return None

    def unread(self, token: str, control: bool, count: int) -> None:
        """Take back the last `count` characters of the token that `next` returned last; a control token as a whole."""
        if not control:
            self._start -= count
        elif count:
            self._queue.appendleft((token, True))

    def fresh(self) -> Lexer:
        """Another lexer for the same marks."""
        return Lexer(self._known)

    def clear(self) -> None:
        self._queue.clear()
        self._start = 0
        self._found.clear()

    def waiting(self) -> tuple[Piece, ...]:
        """What is unread."""
        unread = [*self._queue]
        if unread and self._start:
            unread[0] = (unread[0][0][self._start :], False)
        return tuple(unread)

    def _mark(self, scanner: Scanner, text: str) -> re.Match[str] | None:
        """The next mark in the queue's first piece, looked for once per scanner and stretch of text."""
        if scanner in self._found:
            found = self._found[scanner]
            if found is None or found.start() >= self._start:
                return found
        found = self._found[scanner] = scanner.find(text, self._start)
        return found

    def _drop(self) -> None:
        self._queue.popleft()
        self._start = 0
        self._found.clear()
