"""What one run found: values by peer and round, medians, ratios, verdicts; as JSON, a terminal table and Markdown.

`python -m bench.report FILE.json` prints the Markdown of a report written earlier.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from bench.bars import METRICS, Metric, Verdict, judge


class Report(msgspec.Struct, kw_only=True):
    """`values` is [peer][metric][round]; `missing` and `failed` say why a cell is empty."""

    date: str
    command: str
    machine: dict[str, str]
    seed: str
    sizes: dict[str, Any]
    workloads: str
    complete: bool = False
    values: dict[str, dict[str, list[float]]] = {}
    missing: dict[str, str] = {}
    failed: dict[str, list[str]] = {}

    def add(self, peer: str, values: dict[str, float]) -> None:
        for key, value in values.items():
            self.values.setdefault(peer, {}).setdefault(key, []).append(value)

    def fail(self, peer: str, message: str) -> None:
        self.failed.setdefault(peer, []).append(message)

    @property
    def medians(self) -> dict[str, dict[str, float]]:
        return {
            peer: {key: statistics.median(values) for key, values in metrics.items()}
            for peer, metrics in self.values.items()
        }

    @property
    def verdicts(self) -> list[Verdict]:
        return judge(self.medians)

    @property
    def ok(self) -> bool:
        """The run went to its end, Stoker without a failure, and no bar that could be measured was missed."""
        return (
            self.complete
            and "stoker" not in self.failed
            and all(verdict.holds is not False for verdict in self.verdicts)
        )

    @property
    def figure(self) -> str:
        verdicts = [verdict for verdict in self.verdicts if verdict.holds is not None]
        held = sum(verdict.holds is True for verdict in verdicts)
        parts = [] if self.complete else ["the run was stopped"]
        parts += [f"{held} of {len(verdicts)} measured bars hold"]
        parts += [f"missed: {verdict.bar} (is {verdict.reached:.2f})" for verdict in verdicts if not verdict.holds]
        parts += [f"{peer} failed" for peer in self.failed] + [f"{peer} is missing" for peer in self.missing]
        return "; ".join(parts)

    def to_json(self) -> bytes:
        medians = self.medians
        ours = medians.get("stoker", {})
        ratios = {
            peer: {m.key: m.advantage(ours[m.key], theirs[m.key]) for m in METRICS if m.key in ours and m.key in theirs}
            for peer, theirs in medians.items()
            if peer != "stoker"
        }
        bars = [{"bar": str(v.bar), "reached": v.reached, "holds": v.holds} for v in self.verdicts]
        head = {"ok": self.ok, "figure": self.figure, "bars": bars, "medians": medians, "ratios": ratios}
        return msgspec.json.format(msgspec.json.encode({**head, **msgspec.structs.asdict(self)}), indent=1)


def rows(report: Report) -> tuple[list[str], list[list[str]]]:
    """Header and cells: each metric's medians, and after a peer's the ratio (above 1: Stoker is better)."""
    medians = report.medians
    ours = medians.get("stoker", {})
    peers = sorted(medians, key=lambda name: name != "stoker")

    def cell(metric: Metric, peer: str) -> str:
        value = medians[peer].get(metric.key)
        if value is None:
            return "–"
        if peer == "stoker" or metric.key not in ours:
            return number(value)
        return f"{number(value)} ({metric.advantage(ours[metric.key], value):.2f}x)"

    used = [metric for metric in METRICS if any(metric.key in metrics for metrics in medians.values())]
    header = ["", "metric", "unit", *peers]
    return header, [[m.workload, m.label, m.unit, *(cell(m, peer) for peer in peers)] for m in used]


def number(value: float) -> str:
    """Three figures that mean something."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def table(report: Report) -> Table:
    header, cells = rows(report)
    out = Table(title="medians; in brackets how many times better Stoker is", title_justify="left")
    for index, name in enumerate(header):
        out.add_column(name, justify="left" if index < 3 else "right")
    for row in cells:
        out.add_row(*row)
    return out


def notes(report: Report) -> list[str]:
    lines = [
        f"{'holds' if v.holds else 'MISSED'}: {v.bar} (is {number(v.reached)})"
        for v in report.verdicts
        if v.reached is not None
    ]
    lines += [f"missing: {peer}: {how}" for peer, how in report.missing.items()]
    lines += [f"failed: {peer}: {message}" for peer, messages in report.failed.items() for message in messages]
    return lines


def markdown(report: Report) -> str:
    header, cells = rows(report)
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in cells]
    facts = [f"`{report.command}`, {report.date}"] + [f"{key}: {value}" for key, value in report.machine.items()]
    return "\n".join([*(f"- {fact}" for fact in facts), "", *lines, "", *(f"- {note}" for note in notes(report))])


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m bench.report FILE.json")
    print(markdown(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Report)))


if __name__ == "__main__":
    main()
