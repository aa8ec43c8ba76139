"""One request on its way through engines that may be lost: what was sent of its output, and how another goes on.

Pure: decides nothing about where it goes (`router.py`) or whether it may go on (`suspects.py`).
"""

from __future__ import annotations

import secrets

import msgspec

from stoker.types.wire import Generate, Progress


class Run:
    """Everything the client has seen is in `output`, so what another engine adds continues it exactly.

    replays   engines that were lost with it
    repeated  tokens of prompt and output that were computed again because of that
    """

    def __init__(self, request: Generate) -> None:
        if request.sampling.seed is None:
            # Drawn here, so that one engine goes on with the same random numbers as another.
            sampling = msgspec.structs.replace(request.sampling, seed=secrets.randbits(63))
            request = msgspec.structs.replace(request, sampling=sampling)
        self.id = request.id
        self.lane = request.lane
        self.traceparent = request.traceparent
        self.output: list[int] = []
        self.replays = 0
        self.repeated = 0
        self._request = request
        self._cached = 0  # as the client was told, by the first engine
        self._fresh = True  # this engine has not been heard of yet

    @property
    def tokens(self) -> int:
        """Of prompt and output."""
        return len(self._request.prompt_ids) + len(self.output)

    def request(self, traceparent: str) -> Generate:
        """What the next engine is asked: all of it, and to go on behind what was sent."""
        self._fresh = True
        if not self.output and traceparent == self.traceparent:
            return self._request
        return msgspec.structs.replace(self._request, output_ids=self.output[:], traceparent=traceparent)

    def take(self, progress: Progress) -> Progress:
        """News of the engine, as the client shall have it: what came from a cache is told once, by the first engine."""
        if self._fresh:
            self._fresh = False
            if self.replays:
                self.repeated += self.tokens - progress.cached
        if not self.replays:  # a server of another make says it at the end only
            self._cached = max(self._cached, progress.cached)
        self.output += [token.id for token in progress.tokens]
        if self._cached != progress.cached:
            return msgspec.structs.replace(progress, cached=self._cached)
        return progress
