"""`stoker render`: the published prompts through the command, and lines that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from shared_data import SHARED, needs_shared, read_lines

HELLO = {"id": "a", "messages": [{"role": "user", "content": "hi"}], "kwargs": {"add_generation_prompt": True}}


def render(*args: str, given: str) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        [sys.executable, "-m", "stoker.cli", "render", *args],
        input=given.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


@needs_shared
@pytest.mark.parametrize("family", ["kimi_k25", "glm53"])
def test_published_prompts(family: str) -> None:
    lines = [line for line in read_lines("render.jsonl") if line["family"] == family]
    inputs = [{key: line[key] for key in ("id", "family", "messages", "tools", "kwargs")} for line in lines]
    kimi = family.startswith("kimi")
    options = ["--tokenizer", str(SHARED / "conformance" / "kimi_tokenizer")] if kimi else []
    status, answers, errors = render("--family", family, *options, given="\n".join(map(json.dumps, inputs)))
    assert (status, errors) == (0, "")
    wanted = ("id", "text", "token_ids") if kimi else ("id", "text")
    assert answers == [{key: line[key] for key in wanted} for line in lines]


def test_a_line_that_cannot_be_used_is_answered_and_the_others_are_rendered() -> None:
    bad = [
        "{broken",
        "[1]",
        '{"id": "no messages"}',
        '{"id": 7, "messages": [{"role": "user", "content": 3}]}',
        '{"id": "role", "messages": [{"content": "x"}]}',
        '{"id": "tools", "messages": [], "tools": [{"function": 1}]}',
        '{"id": "kwargs", "messages": [], "kwargs": [1]}',
        '{"id": "part", "messages": [{"role": "user", "content": [{"type": "audio"}]}]}',
        '{"id": "call", "messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}',
        '{"id": "deep", "messages": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"id": "args", "messages": [{"role": "assistant", '
        '"tool_calls": [{"function": {"name": "f", "arguments": "x"}}]}]}',
    ]
    half = '{"id": "half", "messages": [{"role": "user", "content": "\\ud800"}]}'
    given = "\n\n".join([json.dumps(HELLO), *bad, half, json.dumps(HELLO)])
    status, answers, errors = render("--family", "glm47", given=given)
    assert (status, errors) == (1, "")
    assert answers[0] == answers[-1] == {"id": "a", "text": "[gMASK]<sop><|user|>hi<|assistant|><think>"}
    assert answers[-2] == {"id": "half", "text": "[gMASK]<sop><|user|>\ud800"}
    failed = answers[1:-2]
    assert len(failed) == len(bad)
    assert all(set(answer) == {"id", "error"} and answer["error"] for answer in failed)
    assert [answer["id"] for answer in failed] == [
        None, None, "no messages", 7, "role", "tools", "kwargs", "part", "call", None, "args"
    ]  # fmt: skip


def test_wrong_options_are_told() -> None:
    status, answers, errors = render("--family", "glm", given="")
    assert (status, answers) == (2, [])
    assert "kimi_k25" in errors
    status, answers, errors = render("--family", "glm47", "--tokenizer", "nowhere", given="")
    assert (status, answers) == (1, [])
    assert "nowhere" in errors


def test_a_reader_that_has_enough_is_no_error() -> None:
    shell = subprocess.Popen(
        [sys.executable, "-m", "stoker.cli", "render", "--family", "glm47"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert shell.stdin
    assert shell.stdout
    assert shell.stderr
    shell.stdout.close()
    shell.stdin.write(json.dumps(HELLO).encode() + b"\n")
    shell.stdin.close()
    assert shell.stderr.read() == b""
    assert shell.wait(timeout=60) == 0
    shell.stderr.close()
