"""What the decoding process (`decode.py`) is told and tells. Imports no decoder."""

from __future__ import annotations

import msgspec

from stoker.models.vision.processor import ImageProcessor


class Task(msgspec.Struct, frozen=True):
    """`size` bytes follow."""

    size: int
    processor: ImageProcessor


class Decoded(msgspec.Struct, frozen=True):
    """Sides of the padded image in pixels, of which 3 bytes each follow; or what is wrong with the file."""

    height: int = 0
    width: int = 0
    error: str | None = None
