"""The table of what is checked, in docs/models.md: every cell is a test, every model of the tests has a cell, and what
is not there yet is refused by name."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from stoker.engine import capacity
from stoker.models.loader import FAMILIES, family_of, load_graph
from stoker.models.shards import Ranks
from stoker.models.source import ModelError, ModelFiles
from stoker.models.text.family import Family
from stoker.models.text.renderers import RENDERERS

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "models.md"
HEAD = ["Models", "`model_type`", "Network", "Published folder", "Prompt", "Answer", "Over HTTP", "MTP"]
SEE = {"kimi_k25"}  # whose language model is a part of theirs
Row = dict[str, str]


def rows() -> list[Row]:
    section = PAGE.read_text(encoding="utf-8").split("## What is checked\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split("|") for line in section.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert cells[0] == HEAD
    filled = [[*row, *[""] * (len(HEAD) - len(row))] for row in cells[2:]]
    return [dict(zip(HEAD, row, strict=True)) for row in filled]


ROWS = rows()
SERVED = [row for row in ROWS if row["`model_type`"] != "not yet"]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def words(file: str) -> set[str]:
    """All texts written in a test module: the names of its cases are among them."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def keys(file: str, name: str) -> list[str]:
    """The keys of the dictionary that a test module calls `name`."""
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    raise AssertionError(f"{file} has no {name}")


def backing(column: str, name: str) -> bool:
    """Whether a cell's name is that of a test."""
    match column:
        case "Network":
            module, _, case = name.partition(": ")
            file = f"models/graphs/test_{module}.py"
            text = (TESTS / file).read_text(encoding="utf-8")
            return "def test_same_logits_as_transformers(" in text and (not case or case in words(file))
        case "Published folder":
            return name in keys("models/test_maker_layouts.py", "MODELS")
        case "Prompt":
            return Family(name) in RENDERERS
        case "Answer":
            return name in words("models/text/parse/test_parse_goldens.py")
        case "Over HTTP":
            modules = {"recurrent": "test_recurrent_family.py", "demo": "test_served_model.py"}
            if name in modules:
                return (TESTS / "e2e" / modules[name]).is_file()
            return name in keys("e2e/test_model_families.py", "FAMILIES") or name in words("e2e/test_long_context.py")
        case "MTP":
            return name in keys("models/graphs/test_mtp.py", "MODELS")
        case _:
            raise AssertionError(column)


@pytest.mark.parametrize("row", SERVED, ids=lambda row: row["Models"])
def test_every_cell_is_a_test(row: Row) -> None:
    for column in HEAD[2:]:
        cell = row[column]
        if names(cell):
            assert all(backing(column, name) for name in names(cell)), (column, cell)
        else:
            assert cell in ("no", "-") or (column, cell) == ("Prompt", "own"), (column, cell)
    assert names(row["Network"]), "a network that is compared with nothing is not served"


def test_every_model_of_the_tests_is_in_the_table() -> None:
    told = {column: {name for row in SERVED for name in names(row[column])} for column in HEAD}
    assert told["`model_type`"] == {*FAMILIES, *SEE}
    assert told["Published folder"] == set(keys("models/test_maker_layouts.py", "MODELS"))
    assert told["MTP"] == set(keys("models/graphs/test_mtp.py", "MODELS"))
    assert told["Over HTTP"] >= set(keys("e2e/test_model_families.py", "FAMILIES"))
    assert told["Prompt"] | {"glm53_flash"} == {str(family) for family in RENDERERS}


NOT_YET: dict[str, list[dict[str, Any]]] = {
    "Kimi K3": [
        {"model_type": "kimi_k3", "text_config": {"model_type": "kimi_linear"}},
        {"model_type": "kimi_linear", "architectures": ["KimiK3ForConditionalGeneration"]},
    ],
    "GLM-5.3-Flash": [
        {"model_type": "glm5_next"},
        {"model_type": "glm5_next", "architectures": ["Glm5NextForConditionalGeneration"]},
    ],
}


def test_what_is_not_there_yet_is_refused_by_name(tmp_path: Path) -> None:
    assert {row["Models"] for row in ROWS if row["`model_type`"] == "not yet"} == set(NOT_YET)
    for name, configs in NOT_YET.items():
        for config in configs:
            with pytest.raises(ModelError, match=rf"{name} \(\w+\) is not supported yet"):
                family_of(config, "here")
            (tmp_path / "config.json").write_text(json.dumps(config))
            with pytest.raises(ModelError, match=name):
                load_graph(
                    ModelFiles(name="m", root=str(tmp_path), gguf=None),
                    dtype=torch.float32,
                    device=torch.device("cpu"),
                    progress=lambda stage, fraction: None,
                )
            report = capacity.check_model(str(tmp_path), Ranks(), None)
            assert not report.ok
            assert any(f"{name} (" in problem for problem in report.problems)
