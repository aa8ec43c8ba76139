"""Every published prompt through `stoker render`, as somebody outside would check it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from shared_data import SHARED, needs_shared, read_lines

LINES = read_lines("render.jsonl")
pytestmark = [pytest.mark.slow, needs_shared]


@pytest.mark.parametrize("family", sorted({line["family"] for line in LINES}))
def test_every_line(family: str) -> None:
    lines = [line for line in LINES if line["family"] == family]
    kimi = family.startswith("kimi")
    options = ["--tokenizer", str(SHARED / "conformance" / "kimi_tokenizer")] if kimi else []
    done = subprocess.run(
        [sys.executable, "-m", "stoker.cli", "render", "--family", family, *options],
        input="".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines).encode(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = ("id", "text", "token_ids") if kimi else ("id", "text")
    assert answers == [{key: line[key] for key in wanted} for line in lines]
