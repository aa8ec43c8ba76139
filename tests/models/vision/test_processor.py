"""Sizes: the same as the library's processor computes, within bounds for any image."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st

from stoker.models.source import ModelError, ModelFiles
from stoker.models.vision.processor import ImageProcessor, parse_processor, read_processor

KIMI = ImageProcessor()
SIDES = st.integers(1, 20_000)


def _library_resize() -> Callable[..., tuple[tuple[int, int], tuple[int, int]]]:
    """The function alone: its module wants a package that nothing else here needs."""
    path = Path(transformers.__file__).parent / "models/kimi_k25/image_processing_kimi_k25.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "navit_resize"]
    found: dict[str, Any] = {"math": math}
    exec(compile(tree, str(path), "exec"), found)
    return found["navit_resize"]


LIBRARY = _library_resize()


@given(SIDES, SIDES)
def test_sizes_as_transformers_has_them(width: int, height: int) -> None:
    resized, padded = LIBRARY(height, width, 14, 2, 16_384, 512)
    fit = KIMI.fit(width, height)
    assert (fit.height, fit.width) == resized
    assert (fit.rows * 28, fit.columns * 28) == padded


@given(SIDES, SIDES)
def test_never_larger_and_never_too_many(width: int, height: int) -> None:
    fit = KIMI.fit(width, height)
    assert 1 <= fit.width <= width
    assert 1 <= fit.height <= height
    assert max(fit.rows, fit.columns) <= 256
    # Partial patches at the borders are not counted against the limit: a thin image is all border.
    assert 1 <= fit.tokens <= 4096 + 2 * (fit.rows + fit.columns)


def test_examples() -> None:
    assert KIMI.fit(224, 224) == (224, 224, 8, 8)
    assert KIMI.fit(225, 1) == (225, 1, 9, 1)
    assert KIMI.fit(3584, 3584).tokens == 4096


def test_the_version_names_all_that_changes_pixels() -> None:
    fields = ImageProcessor.__struct_fields__
    versions = {ImageProcessor(**{name: 9}).version for name in fields} | {KIMI.version}
    assert len(versions) == len(fields) + 1


MAKERS = {
    "media_proc_cfg": {
        "in_patch_limit": 8192,
        "patch_size": 14,
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
        "merge_kernel_size": 2,
        "fixed_output_tokens": None,
        "patch_limit_on_one_side": 256,
        "in_patch_limit_each_frame": 4096,
    }
}
LIBRARYS = {"max_patches": 8192, "patch_size": 14, "merge_size": 2, "size": {"max_height": 256, "max_width": 256}}


@pytest.mark.parametrize("config", [MAKERS, LIBRARYS])
def test_limits_come_from_the_models_files(config: dict[str, Any]) -> None:
    assert parse_processor(config, "here") == ImageProcessor(max_patches=8192, max_side=256)


@pytest.mark.parametrize(
    "config",
    [
        {"image_mean": [0.4, 0.5, 0.5]},
        {"fixed_output_tokens": 64},
        {"patch_size": 0},
        {"merge_size": "2"},
        {"size": {"max_height": 256, "max_width": 128}},
    ],
)
def test_what_cannot_be_done_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="here"):
        parse_processor(config, "here")


def test_only_a_model_with_an_eye_has_one(tmp_path: Path) -> None:
    files = ModelFiles(name="m", root=str(tmp_path), gguf=None)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "kimi_k25", "vision_config": {"patch_size": 14}}))
    assert read_processor(files) == KIMI
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(MAKERS))
    assert read_processor(files) == ImageProcessor(max_patches=8192, max_side=256)
    config.write_text(json.dumps({"model_type": "kimi_k2"}))
    assert read_processor(files) is None
    assert read_processor(ModelFiles(name="m", root=str(tmp_path), gguf=str(tmp_path / "m.gguf"))) is None
