"""Pixels: exact where nothing is resized, as close as two bicubic filters are where it is; hostile files."""

from __future__ import annotations

import io
import random
import struct
import zlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.nn import functional

from stoker.models.vision.pixels import MAX_PIXELS, ImageError, measure, prepare
from stoker.models.vision.processor import ImageProcessor

KIMI = ImageProcessor()
SMALL = ImageProcessor(max_patches=64, max_side=16)


def picture(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values).convert(mode)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(("width", "height"), [(1, 1), (28, 28), (29, 27), (200, 64), (13, 300)])
def test_pixels_that_are_not_resized_stay_what_they_are(width: int, height: int) -> None:
    image = picture(width, height)
    fit, pixels = prepare(encoded(image), KIMI)
    assert pixels.shape == (fit.rows * 28, fit.columns * 28, 3)
    assert (pixels[:height, :width] == np.asarray(image)).all()
    assert not pixels[height:].any()
    assert not pixels[:, width:].any()


@pytest.mark.parametrize(("width", "height"), [(300, 200), (200, 333), (1000, 40), (17, 900)])
def test_resized_as_torch_resizes(width: int, height: int) -> None:
    """What the library's processor does with its tensors: never more than two of 256 levels away, hardly ever that."""
    image = picture(width, height)
    fit, pixels = prepare(encoded(image), SMALL)
    assert (fit.width, fit.height) != (width, height)
    tensor = torch.from_numpy(np.array(image)).permute(2, 0, 1).unsqueeze(0)
    size = (fit.height, fit.width)
    expected = functional.interpolate(tensor, size=size, mode="bicubic", antialias=True)[0].permute(1, 2, 0).numpy()
    off = np.abs(pixels[: fit.height, : fit.width].astype(int) - expected)
    assert off.max() <= 2
    assert off.mean() < 0.2
    bilinear = functional.interpolate(tensor, size=size, mode="bilinear", antialias=True)[0].permute(1, 2, 0).numpy()
    assert np.abs(pixels[: fit.height, : fit.width].astype(int) - bilinear).mean() > 1


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
@pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "1", "CMYK", "LA"])
def test_formats_and_modes(kind: str, mode: str) -> None:
    image = picture(30, 50).convert("L").convert(mode) if mode == "LA" else picture(30, 50, mode)
    try:
        data = encoded(image, kind)
    except (OSError, ValueError):
        data = encoded(image.convert("RGB"), kind)  # a mode that the format does not have
    assert measure(data) == (30, 50)
    assert prepare(data, KIMI)[0].tokens == 4


def test_the_first_picture_of_an_animation() -> None:
    frames = [picture(40, 20, seed=seed).convert("P") for seed in (1, 2, 3)]
    data = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert (prepare(data, KIMI)[1][:20, :40] == np.asarray(frames[0].convert("RGB"))).all()


def test_turned_upright() -> None:
    image = picture(40, 20)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side
    data = encoded(image, "PNG", exif=exif)
    assert measure(data) == (20, 40)
    assert (prepare(data, KIMI)[1][:40, :20] == np.rot90(np.asarray(image), -1)).all()


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "ICO", "PPM", "PDF"])
def test_other_formats_are_not_read(kind: str) -> None:
    with pytest.raises(ImageError, match="PNG, JPEG, WebP or GIF"):
        prepare(encoded(picture(32, 32), kind), KIMI)


@pytest.mark.parametrize("data", [b"", b"x", b"<svg/>", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"RIFF\0\0\0\0WEBP"])
def test_no_image_at_all(data: bytes) -> None:
    for read in (measure, lambda data: prepare(data, KIMI)):
        with pytest.raises(ImageError):
            read(data)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_cut_short(kind: str) -> None:
    data = encoded(picture(100, 100), kind)
    with pytest.raises(ImageError):
        prepare(data[: len(data) // 2], KIMI)


def bomb(width: int, height: int) -> bytes:
    """A PNG of few bytes that claims to be large, and holds nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("width", "height"), [(2**15, 2**15), (2**31 - 1, 1), (1, MAX_PIXELS + 1), (2**31 - 1, 2**31 - 1)]
)
def test_bombs_are_refused_by_their_header(width: int, height: int) -> None:
    for read in (measure, lambda data: prepare(data, KIMI)):
        with pytest.raises(ImageError, match="more than 64 million pixels"):
            read(bomb(width, height))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["PNG", "JPEG", "WEBP", "GIF"]), st.integers(0, 2**32))
def test_damaged_bytes_are_an_image_or_an_image_error(kind: str, seed: int) -> None:
    data = bytearray(encoded(picture(37, 23), kind))
    draw = random.Random(seed)
    for _ in range(draw.randint(1, 30)):
        data[draw.randrange(len(data))] = draw.randrange(256)
    try:
        fit, pixels = prepare(bytes(data), SMALL)
    except ImageError:
        return
    assert pixels.shape == (fit.rows * 28, fit.columns * 28, 3)
