"""What is made of both sides' reports of a tool turn. The real runs are `make clients`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from clients.agents import AGENTS, Outcome, read_claude, read_codex, read_opencode, run
from clients.server import CheckError
from clients.tool_turn import LAST_WORDS, check


def entry(tokens_in: int, cached: int, **other: Any) -> dict[str, Any]:
    return {"path": "/v1/x", "status": 200, "session": "s", "tokens_in": tokens_in, "tokens_cached": cached, **other}


GOOD = Outcome("... secret-42 ...", LAST_WORDS, "s", 1000)
LOGGED = [entry(1000, 0), entry(1050, 1000)]


def test_agreeing_sides_pass() -> None:
    check(GOOD, "secret-42", LOGGED)


@pytest.mark.parametrize(
    ("outcome", "logged", "message"),
    [
        (GOOD, [entry(5, 0, status=400, error="bad"), *LOGGED], "with 400: bad"),
        (Outcome("What?", LAST_WORDS, "s", 1000), LOGGED, "does not show"),
        (Outcome(GOOD.shown, "What?", "s", 1000), LOGGED, "did not see"),
        (Outcome(GOOD.shown, GOOD.text, "t", 1000), LOGGED, "session is t"),
        (GOOD, [entry(1000, 0, session=None), *LOGGED], "session is s"),
        (GOOD, [entry(1050, 500)], "only 500"),
        (Outcome(GOOD.shown, GOOD.text, "s", 0), LOGGED, "counts 0"),
    ],
)
def test_each_disagreement_is_found(outcome: Outcome, logged: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(CheckError, match=message):
        check(outcome, "secret-42", logged)


def test_what_the_agents_print() -> None:
    codex = [
        {"type": "thread.started", "thread_id": "t"},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "I look."}},
        {"type": "item.completed", "item": {"type": "agent_message", "text": "Done."}},
        {"type": "turn.completed", "usage": {"input_tokens": 10, "cached_input_tokens": 4}},
    ]
    shown = "notice\n" + "\n".join(map(json.dumps, codex))
    assert read_codex(shown) == Outcome(shown, "Done.", "t", 4)
    result = {"is_error": False, "result": "Done.", "session_id": "s", "usage": {"cache_read_input_tokens": 4}}
    shown = "\n".join(map(json.dumps, [{"type": "system"}, result]))
    assert read_claude(shown) == Outcome(shown, "Done.", "s", 4)
    with pytest.raises(ValueError, match="it broke"):
        read_claude(json.dumps({"is_error": True, "result": "it broke"}))
    opencode = [
        {"type": "text", "sessionID": "s", "part": {"text": "I look."}},
        {"type": "text", "sessionID": "s", "part": {"text": "Done."}},
        {"type": "step_finish", "sessionID": "s", "part": {"tokens": {"input": 6, "cache": {"read": 4}}}},
    ]
    shown = "\n".join(map(json.dumps, opencode))
    assert read_opencode(shown) == Outcome(shown, "Done.", "s", 4)


@pytest.mark.parametrize("name", AGENTS)
def test_configurations_point_only_at_us(name: str, tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    command, env = AGENTS[name].prepare(Path("/program"), home, project, "http://127.0.0.1:1")
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    written = " ".join([*env.values(), *files])
    assert command[0] == "/program"
    assert "http://127.0.0.1:1" in written
    assert re.findall(r"https?://(?!127\.0\.0\.1|opencode\.ai/config\.json)", written) == []
    tool, arguments = AGENTS[name].call(project / "note.txt")
    assert tool
    assert "note.txt" in str(arguments)


@pytest.mark.parametrize(("script", "message"), [("exit 3", "status 3"), ("echo nonsense", "something else")])
def test_an_agent_that_fails(script: str, message: str, tmp_path: Path) -> None:
    program = tmp_path / "node_modules" / ".bin" / "codex"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.raises(CheckError, match=message):
        run(AGENTS["codex"], tmp_path, tmp_path, tmp_path, "http://127.0.0.1:1", "Hi")
