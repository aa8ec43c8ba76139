"""Medians, ratios, verdicts and what a report says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from bench.bars import BARS, BY_KEY, METRICS, judge
from bench.report import Report, markdown, notes, rows

GOOD = {
    "stoker": {
        "decode_tok_s": 40.0,
        "prefill_tok_s": 500.0,
        "total_tok_s": 700.0,
        "agent_wall_s": 120.0,
        "cached_of_ideal": 0.96,
        "cold_s": 4.0,
        "peak_mib": 900.0,
    },
    "transformers": {"decode_tok_s": 20.0, "prefill_tok_s": 500.0},
    "vllm_cpu": {"total_tok_s": 1000.0, "agent_wall_s": 80.0, "cold_s": 27.0, "peak_mib": 6540.0},
}
WORSE = {
    "decode_tok_s": 19.9,
    "prefill_tok_s": 499.0,
    "total_tok_s": 699.0,
    "agent_wall_s": 120.1,
    "cached_of_ideal": 0.949,
    "cold_s": 5.5,
    "peak_mib": 1431.0,
}


def report_of(medians: dict[str, dict[str, float]], *, complete: bool = True) -> Report:
    report = Report(
        date="d", command="c", machine={"cpu": "x"}, seed="s", sizes={}, workloads="abcdefg", complete=complete
    )
    for peer, metrics in medians.items():
        report.add(peer, metrics)
    return report


def test_all_bars_hold_when_reached_exactly() -> None:
    assert [verdict.holds for verdict in judge(GOOD)] == [True] * len(BARS)
    assert report_of(GOOD).ok


@pytest.mark.parametrize("key", WORSE)
def test_each_bar_can_be_missed(key: str) -> None:
    medians = {**GOOD, "stoker": {**GOOD["stoker"], key: WORSE[key]}}
    missed = [verdict for verdict in judge(medians) if verdict.holds is False]
    assert [verdict.bar.metric for verdict in missed] == [key]
    report = report_of(medians)
    assert not report.ok
    assert str(missed[0].bar) in report.figure


def test_what_was_not_measured_is_not_judged() -> None:
    report = report_of({"stoker": {"decode_tok_s": 1.0}})
    assert [verdict.holds for verdict in report.verdicts] == [None] * len(BARS)
    assert report.ok
    report.fail("stoker", "died")
    assert not report.ok
    assert not report_of(GOOD, complete=False).ok


def test_median_over_rounds_and_ratio_by_direction() -> None:
    report = report_of({})
    for ours, theirs in [(10.0, 5.0), (30.0, 5.0), (11.0, 5.0)]:
        report.add("stoker", {"decode_tok_s": ours, "cold_s": ours})
        report.add("vllm_cpu", {"decode_tok_s": theirs, "cold_s": theirs})
    tree = json.loads(report.to_json())
    assert tree["medians"]["stoker"] == {"decode_tok_s": 11.0, "cold_s": 11.0}
    assert tree["ratios"]["vllm_cpu"] == {"decode_tok_s": pytest.approx(2.2), "cold_s": pytest.approx(5 / 11)}
    assert tree["values"]["stoker"]["cold_s"] == [10.0, 30.0, 11.0]
    assert isinstance(tree["ok"], bool)
    assert isinstance(tree["figure"], str)


def test_a_missing_peer_and_a_failed_one_are_reported() -> None:
    report = report_of(GOOD)
    report.missing["openvino"] = "make bench-peer-openvino"
    report.fail("llama_cpp", "fell over")
    text = "\n".join(notes(report))
    assert "missing: openvino: make bench-peer-openvino" in text
    assert "failed: llama_cpp: fell over" in text
    assert "openvino is missing" in report.figure
    assert report.ok


def test_table_has_stoker_first_and_a_dash_where_nothing_was_measured() -> None:
    header, cells = rows(report_of({"transformers": GOOD["transformers"], "stoker": GOOD["stoker"]}))
    assert header[3:] == ["stoker", "transformers"]
    by_label = {row[1]: row[3:] for row in cells}
    assert by_label[BY_KEY["decode_tok_s"].label] == ["40", "20 (2.00x)"]
    assert by_label[BY_KEY["cold_s"].label] == ["4", "–"]
    assert len({metric.key for metric in METRICS}) == len(METRICS)


def test_a_written_report_prints_as_markdown(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    report = report_of(GOOD)
    file.write_bytes(report.to_json())
    assert msgspec.json.decode(file.read_bytes(), type=Report) == report
    done = subprocess.run(
        [sys.executable, "-m", "bench.report", str(file)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == markdown(report).strip()
    assert "| a | single stream, decode | tok/s | 40 | 20 (2.00x) | – |" in done.stdout
