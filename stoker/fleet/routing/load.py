"""What one replica has to do: its queue, its running sequences, its measured speed. The one place where load lives.

started - finished = load, at every moment; every record is made by `sent` and ended by `finished`, which may be called
any number of times. Does not know what is cached (`view.py`) nor who else there is.

The wait of a new request is the uncached tokens ahead of it, less what has been computed since the last one began,
over the measured prefill rate. Where all slots are taken it is the time until one comes free, if that is longer.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stoker.fleet.routing.view import Ticket
from stoker.types.lane import Lane

GAIN = 0.1  # of a new measurement in a running mean
SAMPLE_TOKENS = 256  # a prefill of fewer tokens measures the fixed costs, not the rate
HOLD_SECONDS = 10.0  # how long a slot is held, before the first has come free
HOLD_GAIN = 0.05


@dataclass(slots=True)
class Flight:
    """One request that was sent: `uncached` prompt tokens as predicted, `output` tokens seen so far."""

    tokens: int
    uncached: int
    lane: Lane
    ticket: Ticket
    sent: float
    began: float | None = None  # when the first token came
    started: float = 0.0  # when its prefill began, as far as can be told
    alone: bool = False  # nothing else was queued while it was
    output: int = 0


@dataclass(slots=True)
class Load:
    """Times in seconds of the router's clock; `rate` in uncached prompt tokens per second, 0 unknown.

    `kv` is the part of the KV pool in use by running sequences, 0..1, where the engine tells.
    """

    slots: int
    rate: float
    step: float
    kv: float = 0.0
    started: int = 0
    ended: int = 0
    tokens: int = 0  # prompt tokens of all in flight
    output: int = 0  # output tokens of all in flight so far
    hold: float = HOLD_SECONDS
    flights: dict[str, Flight] = field(default_factory=dict[str, Flight])
    _queued: dict[str, Flight] = field(default_factory=dict[str, Flight])  # not begun, in order of dispatch
    _ahead: list[int] = field(default_factory=lambda: [0] * len(Lane))  # uncached tokens of those, by lane
    _since: float = 0.0  # when the last one began, or the queue was empty
    _credit: float = 0.0  # tokens computed before `_since` for those that are still queued

    @property
    def inflight(self) -> int:
        return len(self.flights)

    @property
    def queued(self) -> int:
        """Requests whose first token has not come."""
        return len(self._queued)

    @property
    def queued_tokens(self) -> int:
        return sum(self._ahead)

    def done(self, now: float, rate: float) -> float:
        """Prompt tokens that were computed for requests still in the queue."""
        return (
            min(self._credit + max(now - self._since, 0.0) * rate, float(self.queued_tokens)) if self._queued else 0.0
        )

    def wait(self, lane: Lane, now: float, rate: float) -> float:
        """Seconds until a request of `lane` that is sent now begins its prefill."""
        ahead = sum(self._ahead[: lane + 1]) - self.done(now, rate)
        wait = ahead / rate if ahead > 0 else 0.0
        over = self.inflight - (self.slots - 1)
        return max(wait, over * self.hold / self.slots) if over > 0 else wait

    def sent(self, request: str, flight: Flight) -> None:
        if not self._queued:
            self._since, self._credit, flight.alone = flight.sent, 0.0, True
        else:
            for other in self._queued.values():
                other.alone = False
        self.started += 1
        self.tokens += flight.tokens
        self.flights[request] = self._queued[request] = flight
        self._ahead[flight.lane] += flight.uncached

    def begun(self, request: str, cached: int, now: float) -> Flight | None:
        """Its first token came; `cached` of its prompt tokens were in the cache. None if that was told before."""
        flight = self._queued.get(request)
        if flight is None:
            return None
        uncached = max(flight.tokens - cached, 0)
        flight.started = now
        if self.rate:
            flight.started = max(flight.sent, now - uncached / self.rate)
        took = now - flight.sent
        if flight.alone and uncached >= SAMPLE_TOKENS and took > 0:
            self.measured(uncached / took)
        flight.began = now
        self._dequeue(request, uncached, now)
        return flight

    def measured(self, rate: float) -> None:
        """A prefill rate was seen: here over a whole request, or in the engine."""
        self.rate = rate if not self.rate else self.rate + GAIN * (rate - self.rate)

    def progressed(self, request: str, tokens: int) -> None:
        flight = self.flights.get(request)
        if flight is not None:
            flight.output += tokens
            self.output += tokens

    def finished(self, request: str, now: float) -> Flight | None:
        """It has ended, in whatever way. None if that was told before."""
        flight = self.flights.pop(request, None)
        if flight is None:
            return None
        if request in self._queued:
            self._dequeue(request, 0, now)
        else:
            self.hold += HOLD_GAIN * (now - flight.started - self.hold)
        self.ended += 1
        self.tokens -= flight.tokens
        self.output -= flight.output
        return flight

    def _dequeue(self, request: str, uncached: int, now: float) -> None:
        flight = self._queued.pop(request)
        done = self._credit + max(now - self._since, 0.0) * self.rate
        self._ahead[flight.lane] -= flight.uncached
        self._credit = min(max(done - uncached, 0.0), float(self.queued_tokens)) if self._queued else 0.0
        self._since = now
