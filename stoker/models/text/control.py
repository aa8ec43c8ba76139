"""Which parts of a rendered prompt are control tokens: those the template wrote, and no others.

Client strings are guarded before the template sees them: a noncharacter, the joint, goes into every place where a
control token stands, starts at the end, ends at the beginning, or could be completed by the template's own words. A
joint survives what templates do to strings (concatenation, trimming, splitting, JSON), so after rendering every
unbroken control token is the template's. Joints are then dropped and the text between control tokens is encoded as
ordinary text, template words and client words in one piece.

A client string without any of this passes unchanged. One with it may look different to a template's conditions
(`'</think>' in content` does not see a client's `</think>`): whoever is not allowed to write a control token is not
allowed to fake one for the template's logic either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from tokenizers import AddedToken

from stoker.models.text.fixed import Fixed
from stoker.types.errors import invalid

JOINT = "\ufdd0"
_SURROGATE = re.compile("[\ud800-\udfff]")  # JSON escapes can smuggle halves in; no tokenizer takes them
_MAX_DEPTH = 64


class ControlTokens:
    """A tokenizer's added tokens, special or not, but for those that are mere white space or one character: these are
    shorthands for ordinary text. `literals` are the strings the template itself contains."""

    def __init__(self, added: Mapping[int, AddedToken], literals: Iterable[str]) -> None:
        control = {index: token for index, token in added.items() if is_control(token)}
        self.texts = {index: token.content for index, token in control.items()}
        self._by_text = {token.content: (index, token) for index, token in control.items()}
        longest_first = sorted(control.values(), key=lambda token: -len(token.content))
        self._splitter = re.compile("|".join(map(_pattern, longest_first)) or r"(?!)")
        folded = {_fold(text) for text in self._by_text}
        self._longest = max(map(len, folded), default=0)
        self._prefixes = frozenset(text[:end] for text in folded for end in range(1, len(text)))
        self._suffixes = frozenset(text[start:] for text in folded for start in range(1, len(text)))
        self._middles = _middles(folded, literals)
        # grouped by first character for the same reason as in `_pattern`
        tails: dict[str, list[str]] = {}
        for text in sorted(folded):
            tails.setdefault(text[0], []).append(re.escape(text[1:]))
        starts = [f"{re.escape(head)}(?={'|'.join(rest)})" for head, rest in tails.items()]
        self._starts = re.compile("|".join(starts) or r"(?!)", re.IGNORECASE)

    def find(self, text: str) -> int | None:
        """The id of the control token that is written so."""
        found = self._by_text.get(text)
        return None if found is None else found[0]

    def guard(self, value: Any, depth: int = 0) -> Any:
        """A JSON value from a client with every string in it, keys too, unable to form a control token.

        Raises StokerError (INVALID) when it is nested too deeply.
        """
        if isinstance(value, str):
            return self._guard_text(value)
        if depth > _MAX_DEPTH:
            raise invalid("too_deeply_nested", f"a JSON value of the request is nested more than {_MAX_DEPTH} deep")
        if isinstance(value, dict):
            return {self.guard(key): self.guard(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.guard(item, depth + 1) for item in value]
        return value

    def split(self, rendered: str) -> list[str | int]:
        """A rendered prompt as ordinary texts, without joints, and the ids of the control tokens between them."""
        parts: list[str | int] = []
        at = 0
        for match in self._splitter.finditer(rendered):
            index, token = self._by_text[match[0]]
            before = rendered[at : match.start()]
            parts += (before.rstrip() if token.lstrip else before, index)
            at = match.end()
            while token.rstrip and rendered[at : at + 1].isspace():
                at += 1
        parts.append(rendered[at:])
        return [text for part in parts if (text := part.replace(JOINT, "") if isinstance(part, str) else part) != ""]

    def join(self, pieces: Iterable[str]) -> list[str | int]:
        """A built-in renderer's texts, in the form of `split`: control tokens are found in those that are `Fixed`."""
        parts: list[str | int] = []
        run: list[str] = []
        for piece in pieces:
            for part in self.split(piece) if isinstance(piece, Fixed) else [_whole(piece)]:
                if isinstance(part, str):
                    run.append(part)
                    continue
                parts += ("".join(run), part) if any(run) else (part,)
                run = []
        return [*parts, "".join(run)] if any(run) else parts

    def _guard_text(self, text: str) -> str:
        text = _whole(text).replace(JOINT, "")
        body = text.strip()  # templates trim: the borders that count are those of the trimmed string
        size, reach = len(body), min(len(body), self._longest)
        head, tail = _fold(body[:reach]), _fold(body[size - reach :])
        cuts = {match.end() for match in self._starts.finditer(body)}
        cuts |= {size - reach + at + 1 for at in range(reach) if tail[at:] in self._prefixes}
        cuts |= {end - 1 for end in range(1, reach + 1) if head[:end] in self._suffixes}
        if head in self._middles and reach == size:
            cuts.add(0)
        if not cuts:
            return text
        borders = [0, *sorted(cuts), size]
        pieces = [body[start:end] for start, end in pairwise(borders)]
        return text.replace(body, JOINT.join(pieces), 1)


def _whole(text: str) -> str:
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def is_control(token: AddedToken) -> bool:
    return len(token.content) > 1 and not token.content.isspace()


def _pattern(token: AddedToken) -> str:
    """How the tokenizers library finds the token. Mere literals, where they can be, let the search skip at C speed."""
    text = re.escape(token.content)
    return rf"(?<!\w){text}(?!\w)" if token.single_word else text


def _fold(text: str) -> str:
    """Lower case character by character, so that places stay what they are."""
    return "".join(lower if len(lower := character.lower()) == 1 else character for character in text)


def _middles(tokens: Iterable[str], literals: Iterable[str]) -> frozenset[str]:
    """Strings that go on with a control token whose start a literal of the template may have written just before, as
    `im_end` does in `<|` + x + `|>`. Wider than needed: only the last characters of the literals are looked at."""
    ends = {literal[-1].lower() for literal in literals if literal}
    return frozenset(
        text[left:right]
        for text in tokens
        for left in range(1, len(text))
        if text[left - 1] in ends
        for right in range(left + 1, len(text))
    )
