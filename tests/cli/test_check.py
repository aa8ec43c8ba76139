"""`stoker check` for people and programs: published sizes come out, mistakes are one line."""

from __future__ import annotations

import json
from pathlib import Path

import makers
import pytest
from typer.testing import CliRunner, Result

from stoker.cli import app
from stoker.models.source import ModelFiles


def stoker_check(*args: str) -> Result:
    return CliRunner().invoke(app, ["check", *args])


def test_kimi_k2_5_on_eight_h200() -> None:
    done = stoker_check("--example", "kimi-k2.5", "--tp", "8", "--hardware", "h200", "--json")
    report = json.loads(done.stdout)
    assert done.exit_code == 0
    assert round(report["weights_gib"]) == 554
    assert report["kv_bytes_per_token"] == report["kv_bytes_per_token_and_rank"] == 61 * 576 * 2 == 70_272
    assert (report["missing"], report["unexpected"], report["misshapen"], report["problems"]) == ([], [], [], [])
    assert report["mtp_layers"] == 0
    assert 70 < report["bytes_per_rank"] / 2**30 < 72  # vLLM reports 71.9 for the same
    assert 650_000 < report["kv_budget_tokens"] < 850_000  # and a pool of 706,560 tokens
    assert report["fits"] is True


def test_layers_that_predict_further_are_shown(tmp_path: Path) -> None:
    makers.glm_45().write(tmp_path)
    done = stoker_check(str(tmp_path))
    assert done.exit_code == 0
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("MTP ")]
    assert line.endswith("1 layer, 0.00 GiB, not loaded to serve")


def test_a_quantisation_group_is_not_cut(tmp_path: Path) -> None:
    """The experts' inner width of 64 is two groups of 32: two ranks take one each, four would cut them. Whole experts
    may be dealt to as many."""
    makers.kimi_k25().write(tmp_path)
    assert stoker_check(str(tmp_path), "--tp", "2", "--json").exit_code == 0
    done = stoker_check(str(tmp_path), "--tp", "4", "--json")
    assert done.exit_code == 1
    (problem, *more) = json.loads(done.stdout)["problems"]
    assert "language_model.model.layers.1.mlp.experts.0.down_proj.weight: 4 shards of 64 columns would cut" in problem
    assert "quantisation groups of 32" in problem
    assert all("down_proj.weight" in line for line in more), "rows are not in groups"
    shown = stoker_check(str(tmp_path), "--tp", "4")
    assert shown.exit_code == 1
    assert "would cut quantisation groups of 32" in shown.stdout
    assert stoker_check(str(tmp_path), "--tp", "4", "--ep", "4", "--json").exit_code == 0


def test_blocks_are_not_cut_but_rows_with_a_scale_each_are(tmp_path: Path) -> None:
    """FP8 in blocks of 128 x 128 against FP8 with a scale per row, in the same kind of layers."""
    for make, ok in ((makers.kimi_k2, False), (makers.glm_45, True)):
        folder = tmp_path / make.__name__
        folder.mkdir()
        make().write(folder)
        done = stoker_check(str(folder), "--tp", "2", "--json")
        report = json.loads(done.stdout)
        assert report["ok"] is ok, report["problems"]
        assert any("cut quantisation groups of 128" in line for line in report["problems"]) is not ok
        assert not any("norm" in line or "embed" in line for line in report["problems"])


def test_a_folder_for_a_person(tiny_llama: ModelFiles) -> None:
    done = stoker_check(tiny_llama.root, "--tp", "2", "--hardware", "h100")
    assert done.exit_code == 0
    lines = dict(line.split("  ", 1) for line in done.stdout.splitlines() if "  " in line)
    assert lines["KV cache"].strip() == "384 bytes a token, in bfloat16"
    assert "192 bytes a token on each rank" in done.stdout
    assert lines["fits"].strip().startswith("yes")
    assert "✓ no missing tensors" in done.stdout


def test_what_is_wrong_is_shown_in_part(tiny_llama: ModelFiles, tmp_path: Path) -> None:
    config = json.loads((Path(tiny_llama.root) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = stoker_check(str(tmp_path))
    assert done.exit_code == 1
    assert "✗ 30 missing tensors" in done.stdout
    assert "and 25 more (all of them with --json)" in done.stdout


@pytest.mark.parametrize(
    ("args", "status", "message"),
    [
        ([], 2, "give the PATH of a model, or --example NAME"),
        (["x", "--example", "glm-5"], 2, "give the PATH of a model, or --example NAME"),
        (["--example", "gpt-9"], 2, "choose one of glm-5, kimi-k2.5, kimi-linear"),
        (["x", "--hardware", "abacus"], 2, "choose one of h100, h200, b200"),
        (["no/such/place"], 1, "there is no model at no/such/place"),
    ],
)
def test_mistakes(args: list[str], status: int, message: str) -> None:
    done = stoker_check(*args)
    assert done.exit_code == status
    assert not done.stdout
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
