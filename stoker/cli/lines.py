"""JSON lines in, JSON lines out: the frame of commands that do one thing to each line of standard input.

A line that cannot be used is answered too, and the others still are.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import typer

from stoker.types.errors import StokerError

MAX_LINE = 64 << 20  # bytes


def each_line(work: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Write `{"id": ..., **work(line)}` for each line. `work` raises StokerError or ValueError for one that cannot be
    used: then it is `{"id": ..., "error": ...}`, and the command leaves with status 1 at the end."""
    failed = False
    try:
        while line := sys.stdin.buffer.readline(MAX_LINE + 1):
            if line.isspace():
                continue
            answer = _answer(line, work)
            failed |= "error" in answer
            # a half of a character that an escape smuggled in goes out as the same escape
            text = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace")
            sys.stdout.buffer.write(text + b"\n")
            sys.stdout.buffer.flush()
    except BrokenPipeError:  # whoever reads has enough; Python must not find out once more when it leaves
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if failed:
        raise typer.Exit(1)


def _answer(line: bytes, work: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    if len(line) > MAX_LINE:
        while line and not line.endswith(b"\n"):
            line = sys.stdin.buffer.readline(MAX_LINE)
        return {"id": None, "error": f"the line is longer than {MAX_LINE} bytes"}
    name = None
    try:
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ValueError("the line is not a JSON object")
        name = value.get("id")
        return {"id": name, **work(value)}
    except (StokerError, ValueError) as error:
        return {"id": name, "error": str(error)}
    except RecursionError:
        return {"id": name, "error": "the line is nested too deeply"}
