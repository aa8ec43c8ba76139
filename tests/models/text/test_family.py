"""Families by what the files of a model say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stoker.models.source import ModelFiles
from stoker.models.text.family import Family, detect_family
from stoker.models.text.model import TextModel

GLM = "[gMASK]<sop> <tool_call> <arg_key> <arg_value> "
KIMI = "<|im_middle|> <|tool_calls_section_begin|> "


@pytest.mark.parametrize(
    ("kind", "template", "family"),
    [
        ("kimi_k2", KIMI, Family.KIMI_K2),
        ("deepseek_v3", KIMI, Family.KIMI_K2),
        ("kimi_k2", KIMI + "<think>", Family.KIMI_K2_THINKING),
        ("kimi_linear", KIMI, Family.KIMI_K2),
        ("kimi_linear", None, Family.KIMI_K2),
        ("kimi_k25", KIMI + "<think> tools_ts_str", Family.KIMI_K25),
        ("kimi_k25", None, Family.KIMI_K25),
        (None, KIMI + "<think> tools_ts_str", Family.KIMI_K25),
        ("kimi_k25", KIMI + "<think> preserve_thinking", Family.KIMI_K26_PRESERVE),
        ("glm4_moe", GLM + "/nothink", Family.GLM45),
        (None, GLM + "/nothink", Family.GLM45),
        ("glm4_moe", GLM + "clear_thinking", Family.GLM47),
        ("glm4_moe_lite", GLM + "clear_thinking", Family.GLM47),
        ("glm_moe_dsa", GLM + "clear_thinking", Family.GLM5),
        (None, GLM + "clear_thinking", Family.GLM5),
        ("glm_moe_dsa", None, Family.GLM53),
        ("glm_moe_dsa", GLM + "defer_loading", Family.GLM53),
        ("glm5_next", GLM + "defer_loading <|begin_of_image|>", Family.GLM53_FLASH),
        ("glm5_next", None, Family.GLM53_FLASH),
        ("qwen3_moe", "<tool_call> {'name': ..., 'arguments': ...} <think>", Family.HERMES),
        ("llama", "<think> tools", Family.THINK),
        ("llama", "tools in some way", Family.PLAIN),
        ("llama", "<think> only", Family.HERMES),
        ("llama", "plain words", Family.HERMES),
        ("llama", None, Family.PLAIN),
        ("deepseek_v3", None, Family.PLAIN),
    ],
)
def test_families(tmp_path: Path, kind: str | None, template: str | None, family: Family) -> None:
    if kind is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}), encoding="utf-8")
    files = ModelFiles(name="m", root=str(tmp_path), gguf=None if kind else str(tmp_path / "m.gguf"))
    assert detect_family(files, template) is family


def test_a_gguf_file_is_not_judged_by_a_configuration_beside_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "kimi_k25"}', encoding="utf-8")
    assert detect_family(ModelFiles(name="m", root=str(tmp_path), gguf="m.gguf"), "tools") is Family.PLAIN


def test_the_demo_and_the_tiny_model(demo_text: TextModel, tiny_text: TextModel) -> None:
    assert demo_text.family is Family.HERMES
    assert tiny_text.family is Family.HERMES
