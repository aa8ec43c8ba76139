"""OpenAI's shape for an error, for a whole response or for one event of a stream."""

from __future__ import annotations

import msgspec

from stoker.types.errors import ErrorKind, StokerError

_STATUS = {
    ErrorKind.INVALID: 400,
    ErrorKind.AUTH: 401,
    ErrorKind.PERMISSION: 403,
    ErrorKind.NOT_FOUND: 404,
    ErrorKind.TIMEOUT: 408,
    ErrorKind.TOO_LARGE: 413,
    ErrorKind.LIMIT: 429,
    ErrorKind.INTERNAL: 500,
    ErrorKind.CAPACITY: 503,
    ErrorKind.UNAVAILABLE: 503,
}


class _Detail(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str


class _Error(msgspec.Struct, frozen=True):
    error: _Detail


def status_of(error: StokerError) -> int:
    """The HTTP status of an error."""
    return _STATUS[error.kind]


def encode_error(error: StokerError) -> bytes:
    """`{"error": {message, type, param, code}}` as JSON."""
    return msgspec.json.encode(_Error(_Detail(error.message, error.kind.value, error.param, error.code)))
