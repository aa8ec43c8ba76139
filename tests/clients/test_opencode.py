"""What the OpenCode check makes of both sides' reports. The real run is `make clients`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clients.opencode import Turn, check, configuration, find_program, parse_events
from clients.server import CheckError, parse_log

TURNS = [Turn("ses_1", "Paris.", 2000, 0), Turn("ses_1", "Rome.", 30, 2000)]


def entry(tokens_in: int, cached: int, **other: Any) -> dict[str, Any]:
    return {"status": 200, "session": "ses_1", "tokens_in": tokens_in, "tokens_cached": cached, **other}


LOGGED = [entry(400, 0), entry(2000, 0), entry(2030, 2000)]


def events(text: str) -> str:
    tokens = {"input": 30, "output": 2, "cache": {"read": 2000, "write": 0}}
    lines: list[dict[str, Any]] = [
        {"type": "step_start", "sessionID": "ses_1", "part": {}},
        {"type": "text", "sessionID": "ses_1", "part": {"text": text}},
        {"type": "step_finish", "sessionID": "ses_1", "part": {"tokens": tokens}},
    ]
    return "some notice\n" + "\n".join(json.dumps(line) for line in lines)


def test_reads_what_opencode_prints() -> None:
    assert parse_events(events(" Rome.\n")) == TURNS[1]
    assert TURNS[1].cached_share == pytest.approx(2000 / 2030)


@pytest.mark.parametrize("output", ["", "an error", events("  "), events("x").rpartition("\n")[0]])
def test_no_answer_is_a_failure(output: str) -> None:
    with pytest.raises(CheckError, match="no answer"):
        parse_events(output)


def test_agreeing_sides_pass() -> None:
    check(TURNS, LOGGED)


@pytest.mark.parametrize(
    ("turns", "logged", "message"),
    [
        ([TURNS[0], Turn("ses_2", "Rome.", 30, 2000)], LOGGED, "not one session"),
        (TURNS, [entry(400, 0, status=400), *LOGGED], "answered with an error"),
        (TURNS, [entry(400, 0, session=None), *LOGGED], "Stoker logged"),
        (TURNS, [], "Stoker logged"),
        (TURNS, [entry(2030, 1990)], "counts 2000 cached"),
        ([TURNS[0], Turn("ses_1", "Rome.", 1000, 1030)], [entry(2030, 1030)], "only 51%"),
    ],
)
def test_each_disagreement_is_found(turns: list[Turn], logged: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(CheckError, match=message):
        check(turns, logged)


def test_only_finished_requests_are_read_from_the_log() -> None:
    lines = [
        "not json",
        "[1]",
        json.dumps({"action": "starting"}),
        json.dumps({"action": "http.request", "status": 200}),
    ]
    assert parse_log("\n".join(lines)) == [{"action": "http.request", "status": 200}]


def test_configuration_points_only_at_us() -> None:
    config = configuration("http://127.0.0.1:1")
    assert config["enabled_providers"] == ["stoker"] == list(config["provider"])
    assert config["provider"]["stoker"]["options"]["baseURL"] == "http://127.0.0.1:1/v1"


def test_the_program_that_runs_is_chosen(tmp_path: Path) -> None:
    for name, script in (("opencode-a", "exit 1"), ("opencode-b", "echo 1.0")):
        folder = tmp_path / "node_modules" / name / "bin"
        folder.mkdir(parents=True)
        (folder / "opencode").write_text(f"#!/bin/sh\n{script}\n")
        (folder / "opencode").chmod(0o755)
    assert "opencode-b" in str(find_program(tmp_path))
    with pytest.raises(CheckError, match="no OpenCode program"):
        find_program(tmp_path / "empty")
