"""Logging set-up: one line a record, as text for people or JSON for machines.

A record may carry an `action` (what happened, stable) and more fields by `extra=`; both formats show them.
"""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:+@%")

_ESCAPES = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}  # break lines or steer terminals


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What `extra=` gave. Names with an underscore are other libraries' own: some have every record carry theirs."""
    given = vars(record).items()
    return {key: value for key, value in given if key not in _STANDARD and key[0] != "_" and value is not None}


def _encode(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode().translate(_ESCAPES)


def _when(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Formatter(logging.Formatter):
    def _trace(self, record: logging.LogRecord) -> str | None:
        return self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else None


class TextFormatter(_Formatter):
    """`TIME LEVEL message key=value ...`; whatever could break the line or hide a field is quoted as JSON."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if not message.isprintable():
            message = _encode(message)
        parts = [_when(record), record.levelname.lower().ljust(7), message]
        fields = _fields(record)
        trace = self._trace(record)
        if trace is not None:
            fields["trace"] = trace
        parts.extend(f"{key}={self._value(value)}" for key, value in fields.items())
        return " ".join(parts)

    def _value(self, value: object) -> str:
        text = str(value)
        return text if text and _PLAIN.issuperset(text) else _encode(value)


class JsonFormatter(_Formatter):
    """One JSON object: time, level, logger, message, action and the other fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = self._trace(record)
        if trace is not None:
            line["trace"] = trace
        return _encode({**_fields(record), **line})


def setup(
    form: Literal["text", "json"], level: Literal["debug", "info", "warning", "error"], stream: TextIO | None = None
) -> None:
    """Send all logging of this process to `stream` (stderr) in one form. Replaces what was set up before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
