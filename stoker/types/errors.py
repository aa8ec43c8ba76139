"""One error type that crosses every layer: what went wrong, where, and who can mend it."""

from __future__ import annotations

from enum import StrEnum


class ErrorKind(StrEnum):
    """Whose turn it is to act; each dialect maps a kind to its own status and shape."""

    INVALID = "invalid_request_error"  # the client must change the request (400)
    AUTH = "authentication_error"  # no key, or an unknown one (401)
    PERMISSION = "permission_error"  # a known key without the right (403)
    NOT_FOUND = "not_found_error"  # no such route or model (404)
    TOO_LARGE = "request_too_large"  # a body or prompt above a cap (413)
    LIMIT = "rate_limit_error"  # the client's own limit (429)
    CAPACITY = "overloaded_error"  # every queue is full right now (503)
    UNAVAILABLE = "service_unavailable_error"  # the engine is down or restarting (503)
    TIMEOUT = "timeout_error"  # a bound on waiting was reached (408)
    INTERNAL = "internal_error"  # our fault (500)


class StokerError(Exception):
    """A failure of one request.

    `code` is machine-readable and stable (`context_length_exceeded`), `message` says what and where for
    a person, `param` names the offending field, `retry_after` is seconds until another try can succeed.
    """

    def __init__(
        self,
        kind: ErrorKind,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.code = code
        self.message = message
        self.param = param
        self.retry_after = retry_after


class LostError(StokerError):
    """The engine gave the request up through no fault of its client. What was sent of the output is right, and another
    engine can go on behind it. With `suspect` the engine died while it worked on the request, which may be why."""

    def __init__(self, code: str, message: str, *, suspect: bool) -> None:
        super().__init__(ErrorKind.UNAVAILABLE, code, message, retry_after=5.0)
        self.suspect = suspect


def invalid(code: str, message: str, *, param: str | None = None) -> StokerError:
    """The commonest error: the request itself is wrong."""
    return StokerError(ErrorKind.INVALID, code, message, param=param)


def word_for(error: BaseException) -> str:
    """What ended something, in a word for metrics and traces: the kind of an error, or `closed` where it was left."""
    if isinstance(error, StokerError):
        return error.kind.value
    return ErrorKind.INTERNAL.value if isinstance(error, Exception) else "closed"
