"""The two kinds of text that make up a prompt, and JSON as the templates write it."""

from __future__ import annotations

import json
from typing import Any


class Fixed(str):
    """Text that the template itself writes: control tokens are looked for in it, and nowhere else.

    Whatever is made from one (joined, formatted, stripped) is a plain `str` again and so counts as a client's text: a
    renderer can forget to mark its own words, but cannot mark a client's by accident.
    """

    __slots__ = ()


def to_json(value: Any, *, compact: bool = False, sort: bool = False) -> str:
    """JSON without ASCII escapes; `compact` without spaces, `sort` with the keys of all objects in order."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":") if compact else None, sort_keys=sort)
