"""The kernels' benchmark, on sizes that take no time: what it writes, not how fast anything is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench import kernels
from stoker.kernels.native import library


def test_a_report_names_both_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if isinstance(library.load(), str):
        pytest.skip("no native kernels here")
    monkeypatch.setattr(kernels, "CASES", (lambda: kernels.decode(2, 40),))
    monkeypatch.setattr("sys.argv", ["kernels", "--json", str(tmp_path / "out.json"), "--rounds", "1"])
    status = kernels.main()
    report = json.loads((tmp_path / "out.json").read_text())
    assert report["ok"] is (status == 0)
    assert report["figure"]
    (row,) = report["microseconds"]
    assert row["name"] == "attention, 2 x 1 new of 40"
    assert row["native"] > 0
    assert row["plain"] > 0


def test_both_forms_of_a_case_do_the_same() -> None:
    case = kernels.decode(3, 50)
    native, plain = case.native(1), case.plain(1)
    assert isinstance(native, torch.Tensor)
    assert isinstance(plain, torch.Tensor)
    torch.testing.assert_close(native, plain, atol=2e-2, rtol=2e-2)
