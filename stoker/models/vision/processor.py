"""What becomes of an image's size on its way into a model, from its configuration: arithmetic only, no pixels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stoker.models.source import ModelError, ModelFiles, read_json

REVISION = 1  # of what `pixels.prepare` computes from the same bytes; it is part of the identity of every image
CONFIG = "preprocessor_config.json"


class Fit(NamedTuple):
    """An image's size in pixels once it is resized, and the tokens it becomes, row by row. Below and to the right it is
    padded to whole tokens."""

    width: int
    height: int
    columns: int
    rows: int

    @property
    def tokens(self) -> int:
        return self.columns * self.rows


class ImageProcessor(msgspec.Struct, frozen=True, kw_only=True):
    """Kimi K2.5's way: a patch is `patch` pixels square, a token `merge` patches square. An image is made smaller,
    never larger, until it has at most `max_patches` patches and `max_side` along each side."""

    patch: int = 14
    merge: int = 2
    max_patches: int = 16_384
    max_side: int = 512

    @property
    def cell(self) -> int:
        """Pixels along each side of a token."""
        return self.patch * self.merge

    @property
    def version(self) -> str:
        """The same for two processors if they make the same pixels of the same bytes."""
        return f"navit-{REVISION}:{self.patch}:{self.merge}:{self.max_patches}:{self.max_side}"

    def fit(self, width: int, height: int) -> Fit:
        """For an image of `width` x `height` pixels, both at least 1. As the makers count, patches that are cut by a
        border do not count against the limits: the result may have a few more."""
        longest = self.max_side * self.patch
        patches = max(1, width // self.patch) * max(1, height // self.patch)
        scale = min(1.0, math.sqrt(self.max_patches / patches), longest / height, longest / width)
        width, height = (min(max(1, int(side * scale)), longest) for side in (width, height))
        return Fit(width, height, -(-width // self.cell), -(-height // self.cell))


def read_processor(files: ModelFiles) -> ImageProcessor | None:
    """How the model takes images; None if it takes none. Raises ModelError for what it asks for and we do not do."""
    root = Path(files.root)
    if files.gguf is not None:
        return None
    config = read_json(root / "config.json")
    if config.get("model_type") != "kimi_k25" or not isinstance(config.get("vision_config"), dict):
        return None
    path = root / CONFIG
    return parse_processor(read_json(path), str(path)) if path.is_file() else ImageProcessor()


def parse_processor(config: dict[str, Any], where: str) -> ImageProcessor:
    """A preprocessor_config.json as the makers of Kimi K2.5 or as transformers write it. Raises ModelError."""
    inner = config.get("media_proc_cfg")
    given = inner if isinstance(inner, dict) else config
    for key, value in {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "fixed_output_tokens": None}.items():
        if given.get(key, value) not in (value, None):
            raise ModelError(f"{where}: {key} is supported as {value!r} only")
    size = given.get("size")
    sides = set(size.values()) if isinstance(size, dict) else set()
    if len(sides) > 1:
        raise ModelError(f"{where}: size is supported with equal sides only")
    names = {
        "patch": given.get("patch_size"),
        "merge": given.get("merge_kernel_size", given.get("merge_size")),
        "max_patches": given.get("in_patch_limit", given.get("max_patches")),
        "max_side": given.get("patch_limit_on_one_side", next(iter(sides), None)),
    }
    values = {name: value for name, value in names.items() if value is not None}
    if any(not isinstance(value, int) or value < 1 for value in values.values()):
        raise ModelError(f"{where}: patch size, merge and limits must be positive integers, not {values}")
    return ImageProcessor(**values)
