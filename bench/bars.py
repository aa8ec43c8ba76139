"""Metrics, and the bars Stoker has set itself against its peers. Pure: medians in, verdicts out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Medians = Mapping[str, Mapping[str, float]]
"""Median by [peer][metric]."""


@dataclass(frozen=True)
class Metric:
    key: str
    workload: str
    label: str
    unit: str
    better: Literal["higher", "lower"]

    def advantage(self, ours: float, theirs: float) -> float:
        """How many times better ours is; below 1 it is worse."""
        if self.better == "lower":
            ours, theirs = theirs, ours
        return ours / theirs if theirs else float("inf")


METRICS = (
    Metric("decode_tok_s", "a", "single stream, decode", "tok/s", "higher"),
    Metric("ttft_s", "a", "single stream, first token", "s", "lower"),
    Metric("prefill_tok_s", "b", "prefill", "tok/s", "higher"),
    Metric("total_tok_s", "c", "concurrent, in + out", "tok/s", "higher"),
    Metric("output_tok_s", "c", "concurrent, out", "tok/s", "higher"),
    Metric("concurrent_ttft_s", "c", "concurrent, mean first token", "s", "lower"),
    Metric("agent_wall_s", "d", "agent, wall", "s", "lower"),
    Metric("agent_ttft_s", "d", "agent, mean first token", "s", "lower"),
    Metric("cached_share", "d", "agent, cached of prompt", "", "higher"),
    Metric("cached_of_ideal", "d", "agent, cached of possible", "", "higher"),
    Metric("cold_s", "e", "cold start to first token", "s", "lower"),
    Metric("peak_mib", "f", "memory, peak", "MiB", "lower"),
    Metric("after_mib", "f", "memory, after", "MiB", "lower"),
    Metric("gateway_1k_ms", "g", "gateway, 1K-token prompt", "ms", "lower"),
    Metric("gateway_100k_ms", "g", "gateway, 100K-token prompt", "ms", "lower"),
    Metric("gateway_again_ms", "g", "gateway, 100K tokens of history and a new turn", "ms", "lower"),
    Metric("gateway_1k_cpu_ms", "g", "gateway, CPU for a 1K-token prompt", "ms", "lower"),
    Metric("gateway_100k_cpu_ms", "g", "gateway, CPU for a 100K-token prompt", "ms", "lower"),
    Metric("gateway_token_us", "g", "gateway, each token of a stream at full speed", "us", "lower"),
    Metric("gateway_token_cpu_us", "g", "gateway, CPU for each token of 32 streams", "us", "lower"),
)
BY_KEY = {metric.key: metric for metric in METRICS}


@dataclass(frozen=True)
class Bar:
    """Against `peer`: Stoker's advantage is at least `least`. Without one: the value itself is at least or below."""

    metric: str
    peer: str | None
    least: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        metric = BY_KEY[self.metric]
        if self.peer is not None:
            return f"({metric.workload}) {metric.label}: at least {self.least:.2f} x as good as {self.peer}"
        bound = f"at least {self.least:g}" if self.least is not None else f"below {self.below:g}"
        return f"({metric.workload}) {metric.label}: {bound} {metric.unit}".rstrip()


BARS = (
    Bar("decode_tok_s", "transformers", least=1.0),
    Bar("prefill_tok_s", "transformers", least=1.0),
    Bar("total_tok_s", "vllm_cpu", least=0.7),
    Bar("agent_wall_s", "vllm_cpu", least=1 / 1.5),
    Bar("cached_of_ideal", None, least=0.95),
    Bar("cold_s", "vllm_cpu", least=5.0),
    Bar("peak_mib", None, below=1.5e9 / (1 << 20)),
)


@dataclass(frozen=True)
class Verdict:
    """`reached` is None when the bar could not be measured in this run."""

    bar: Bar
    reached: float | None

    @property
    def holds(self) -> bool | None:
        if self.reached is None:
            return None
        if self.bar.below is not None:
            return self.reached < self.bar.below
        assert self.bar.least is not None
        return self.reached >= self.bar.least


def judge(medians: Medians) -> list[Verdict]:
    return [Verdict(bar, _reached(bar, medians)) for bar in BARS]


def _reached(bar: Bar, medians: Medians) -> float | None:
    ours = medians.get("stoker", {}).get(bar.metric)
    if ours is None or bar.peer is None:
        return ours
    theirs = medians.get(bar.peer, {}).get(bar.metric)
    return None if theirs is None else BY_KEY[bar.metric].advantage(ours, theirs)
