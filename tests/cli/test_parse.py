"""`stoker parse`: published outputs through the command, and lines that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from parse_cases import CASES, check_answer
from shared_data import SHARED, needs_shared

OUTPUT = {
    "id": "a",
    "tools": [{"type": "function", "function": {"name": "now"}}],
    "start_state": "reasoning",
    "raw_text": "hm</think>So: <tool_call>now</tool_call><tool_call>find<arg_key>q</arg_key><arg_value>x",
    "engine_finish": "length",
}


def parse(*args: str, given: str) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        [sys.executable, "-m", "stoker.cli", "parse", *args],
        input=given.encode(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr.decode()


@needs_shared
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("kimi_k25", ["--tokenizer", str(SHARED / "conformance" / "kimi_tokenizer"), "--split", "2"]),
        ("glm47", ["--split", "5"]),
        ("hermes", []),
    ],
)
def test_published_outputs(family: str, options: list[str]) -> None:
    cases = [case for case in CASES if case["family"] == family]
    status, answers, errors = parse("--family", family, *options, given="\n".join(map(json.dumps, cases)))
    assert (status, errors) == (0, "")
    for case, answer in zip(cases, answers, strict=True):
        assert answer["id"] == case["id"]
        check_answer(case, answer)


def test_a_line_that_cannot_be_used_is_answered_and_the_others_are_parsed() -> None:
    bad = [
        "{broken",
        '{"id": "nothing"}',
        '{"id": "ids", "raw_token_ids": [1]}',
        '{"id": "text", "raw_text": 5}',
        '{"id": "tools", "raw_text": "", "tools": [{"function": {}}]}',
        '{"id": "start", "raw_text": "", "start_state": "middle"}',
        '{"id": "end", "raw_text": "", "engine_finish": "later"}',
    ]
    status, answers, errors = parse(
        "--family", "glm53", given="\n".join([json.dumps(OUTPUT), *bad, json.dumps(OUTPUT)])
    )
    assert (status, errors) == (1, "")
    assert [answer["id"] for answer in answers] == ["a", None, "nothing", "ids", "text", "tools", "start", "end", "a"]
    assert all(set(answer) == {"id", "error"} for answer in answers[1:-1])
    for answer in (answers[0], answers[-1]):
        assert (answer["reasoning"], answer["content"], answer["finish_reason"]) == ("hm", "So:", "length")
        assert [(call["name"], call["arguments"], call["complete"]) for call in answer["tool_calls"]] == [
            ("now", "{}", True),
            ("find", '{"q":', False),
        ]


@pytest.mark.parametrize("args", [["--family", "gpt"], [], ["--family", "glm47", "--split", "0"]])
def test_a_wrong_command_line_is_one_line(args: list[str]) -> None:
    status, answers, errors = parse(*args, given="")
    assert (status, answers) == (2, [])
    assert errors.count("\n") == 1
