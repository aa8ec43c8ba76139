"""What this server counts of its requests, for Prometheus. docs/metrics.md lists every name.

Names and buckets follow OpenTelemetry's conventions for generative AI where there are some. Labels name models, lanes
and outcomes, never a tenant, a session or content. Everything is counted once a request, nothing once a token. What is
read from engines when somebody asks is in `fleet/collector.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.exposition import choose_encoder

from stoker import __version__
from stoker.types.lane import Lane
from stoker.types.usage import Usage

disable_created_metrics()  # twice as many series otherwise, for what `up` tells too

PROVIDER = "stoker"
_DURATION = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84, 327.68)
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_EACH = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS = tuple(4.0**power for power in range(12))
_LOST = (0.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0)
_GEN_AI = ("gen_ai_operation_name", "gen_ai_provider_name", "gen_ai_request_model", "lane")


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """One generation that has ended. Seconds since its request was received.

    operation  `chat` or `text_completion`
    error      "" where it ended well, `closed` where the client left, else an `ErrorKind`
    first      when the first token came, None if none did
    longest    tokens of its longest choice
    """

    operation: str
    model: str
    lane: Lane
    usage: Usage
    seconds: float
    first: float | None
    longest: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class _Series:
    """What is counted of one operation, model and lane. Looking each up anew would cost more than counting does."""

    labels: tuple[str, str, str, str]
    first: Histogram
    each: Histogram
    input: Histogram
    output: Histogram
    tokens: list[Counter]  # in the order of Usage's buckets


class Metrics:
    """One registry. Whoever has more to show registers a collector with it."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._series: dict[tuple[str, str, Lane], _Series] = {}
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        build = Gauge("stoker_build_info", "1, with the version.", ("version",), registry=self.registry)
        build.labels(__version__).set(1)
        self.in_flight = Gauge(
            "stoker_requests_in_flight", "HTTP requests that are being answered.", registry=self.registry
        )
        self._requests = Counter(
            "stoker_requests",
            "HTTP requests that have ended, by route, status, lane and outcome.",
            ("route", "status", "lane", "outcome"),
            registry=self.registry,
        )
        self._duration = Histogram(
            "gen_ai_server_request_duration_seconds",
            "From a request's receipt to its last token.",
            (*_GEN_AI, "error_type"),
            buckets=_DURATION,
            registry=self.registry,
        )
        self._first = Histogram(
            "gen_ai_server_time_to_first_token_seconds",
            "From a request's receipt to its first token.",
            _GEN_AI,
            buckets=_FIRST,
            registry=self.registry,
        )
        self._each = Histogram(
            "gen_ai_server_time_per_output_token_seconds",
            "Mean time between the tokens of one response, after the first.",
            _GEN_AI,
            buckets=_EACH,
            registry=self.registry,
        )
        self._usage = Histogram(
            "gen_ai_client_token_usage",
            "Tokens of one request: all of its input, all of its output.",
            (*_GEN_AI, "gen_ai_token_type"),
            buckets=_TOKENS,
            registry=self.registry,
        )
        self._tokens = Counter(
            "stoker_tokens",
            "Tokens by bucket; the buckets are disjoint.",
            ("model", "lane", "bucket"),
            registry=self.registry,
        )
        self._lost = Histogram(
            "stoker_prefix_lost_tokens",
            "Tokens that a turn of a session had sent before and that must be computed again, by where it changed.",
            ("model",),
            buckets=_LOST,
            registry=self.registry,
        )

    def request(self, *, route: str, status: int, lane: str, outcome: str) -> None:
        """An HTTP request has ended. `route` is one of those that are served, or `other`."""
        self._requests.labels(route, str(status), lane, outcome).inc()

    def turn(self, model: str, lost: int) -> None:
        """A session's prompt was compared with the one before it."""
        self._lost.labels(model).observe(lost)

    def generated(self, done: Generated) -> None:
        series = self._series.get((done.operation, done.model, done.lane))
        if series is None:
            series = self._series[done.operation, done.model, done.lane] = self._open(done)
        self._duration.labels(*series.labels, done.error).observe(done.seconds)
        if done.first is not None and done.error in ("", "closed"):
            series.first.observe(done.first)
            if done.longest > 1:
                series.each.observe((done.seconds - done.first) / (done.longest - 1))
        series.input.observe(done.usage.input)
        series.output.observe(done.usage.output)
        for tokens, counter in zip(msgspec.structs.astuple(done.usage), series.tokens, strict=True):
            counter.inc(tokens)

    def _open(self, done: Generated) -> _Series:
        lane = done.lane.name.lower()
        labels = (done.operation, PROVIDER, done.model, lane)
        return _Series(
            labels=labels,
            first=self._first.labels(*labels),
            each=self._each.labels(*labels),
            input=self._usage.labels(*labels, "input"),
            output=self._usage.labels(*labels, "output"),
            tokens=[self._tokens.labels(done.model, lane, bucket) for bucket in Usage.__struct_fields__],
        )

    def expose(self, accept: str) -> tuple[bytes, str]:
        """Everything, in the format that the header `accept` asks for, and its content type."""
        encode, content_type = choose_encoder(accept)
        return encode(self.registry), content_type
