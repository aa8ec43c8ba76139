"""Every published output, cut in two everywhere, and through `stoker parse` as somebody outside would check it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from parse_cases import CASES, ID_CASES, TEXT_CASES, Case, by_bytes, check, check_answer, from_ids, run, texts
from shared_data import SHARED, needs_shared

pytestmark = [pytest.mark.slow, needs_shared]


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: case["id"])
def test_all_cuts_of_text(case: Case) -> None:
    text = case["raw_text"]
    whole = run(case, by_bytes(text))
    check(case, whole)
    for cut in range(1, len(text)):
        assert run(case, texts(text[:cut], text[cut:])).plain == whole.plain, cut


@pytest.mark.parametrize("case", ID_CASES, ids=lambda case: case["id"])
def test_all_cuts_of_ids(case: Case) -> None:
    ids = case["raw_token_ids"]
    whole = run(case, from_ids(case, [ids]), control_known=True)
    check(case, whole)
    for cut in range(1, len(ids)):
        assert run(case, from_ids(case, [ids[:cut], ids[cut:]]), control_known=True).plain == whole.plain, cut


@pytest.mark.parametrize("split", [None, 1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("family", ["kimi_k2", "kimi_k25", "glm45", "glm47", "hermes"])
def test_every_line_through_the_command(family: str, split: int | None) -> None:
    cases = [case for case in CASES if case["family"] == family]
    options = ["--tokenizer", str(SHARED / "conformance" / "kimi_tokenizer")] if family.startswith("kimi") else []
    options += [] if split is None else ["--split", str(split)]
    done = subprocess.run(
        [sys.executable, "-m", "stoker.cli", "parse", "--family", family, *options],
        input="\n".join(map(json.dumps, cases)).encode(),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    for case, line in zip(cases, done.stdout.splitlines(), strict=True):
        check_answer(case, json.loads(line))
