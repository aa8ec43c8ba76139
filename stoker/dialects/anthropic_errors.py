"""Anthropic's shape and statuses for errors, for a whole response or for one event of a stream."""

from __future__ import annotations

import msgspec

from stoker.types.errors import ErrorKind, StokerError

# kind -> (status, Anthropic's word for it)
_NAMES = {
    ErrorKind.INVALID: (400, "invalid_request_error"),
    ErrorKind.AUTH: (401, "authentication_error"),
    ErrorKind.PERMISSION: (403, "permission_error"),
    ErrorKind.NOT_FOUND: (404, "not_found_error"),
    ErrorKind.TIMEOUT: (408, "timeout_error"),
    ErrorKind.TOO_LARGE: (413, "request_too_large"),
    ErrorKind.LIMIT: (429, "rate_limit_error"),
    ErrorKind.INTERNAL: (500, "api_error"),
    ErrorKind.CAPACITY: (529, "overloaded_error"),
    ErrorKind.UNAVAILABLE: (503, "api_error"),
}


class _Detail(msgspec.Struct, frozen=True):
    type: str
    message: str
    code: str
    param: str | None


class _Error(msgspec.Struct, frozen=True):
    type: str
    error: _Detail


def _detail(error: StokerError) -> _Detail:
    return _Detail(_NAMES[error.kind][1], error.message, error.code, error.param)


def status_of(error: StokerError) -> int:
    """The HTTP status of an error."""
    return _NAMES[error.kind][0]


def encode_error(error: StokerError) -> bytes:
    """`{"type": "error", "error": {type, message, code, param}}` as JSON; `code` and `param` are additions of ours."""
    return msgspec.json.encode(_Error("error", _detail(error)))
