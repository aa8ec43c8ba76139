"""An image file's bytes -> the pixels that a model sees. For bytes from anywhere: call it in a process that may die.

Owns which formats are read and how large an image may be. Four formats, because each decoder is code that strangers'
bytes run through; of an animation the first picture.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageOps

from stoker.models.vision.processor import Fit, ImageProcessor

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
MAX_PIXELS = 64 << 20  # of a picture before it is resized: 200 MB of memory in RGB


class ImageError(Exception):
    """The bytes are no image that is read; the message is for the client."""


def measure(data: bytes) -> tuple[int, int]:
    """Width and height of an image as it is shown, from its header alone. Raises ImageError."""
    with _opened(data) as image:
        sides = image.size
        return (sides[1], sides[0]) if _lies(image) else sides


def prepare(data: bytes, processor: ImageProcessor) -> tuple[Fit, np.ndarray]:
    """The image resized and padded with zeros: uint8 [rows * cell, columns * cell, 3]. Raises ImageError.

    Turned upright as its EXIF data says; transparency is dropped, as the makers do. Resizing is Pillow's bicubic.
    """
    with _opened(data) as image:
        try:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        except MemoryError:
            raise
        except Exception as error:  # decoders raise whatever they meet: OSError, SyntaxError, struct.error, ...
            raise ImageError("it is damaged or cut short") from error
    fit = processor.fit(*upright.size)
    if upright.size != (fit.width, fit.height):
        upright = upright.resize((fit.width, fit.height), Image.Resampling.BICUBIC)
    padded = np.zeros((fit.rows * processor.cell, fit.columns * processor.cell, 3), dtype=np.uint8)
    padded[: fit.height, : fit.width] = np.asarray(upright)
    return fit, padded


def _opened(data: bytes) -> Image.Image:
    """The header was read and the size is within bounds."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes that are refused here, and of odd metadata
            image = Image.open(io.BytesIO(data), formats=FORMATS)
    except MemoryError:
        raise
    except Image.DecompressionBombError as error:
        raise _too_large() from error
    except Exception as error:
        raise ImageError("it is not a PNG, JPEG, WebP or GIF file") from error
    if image.width * image.height > MAX_PIXELS:
        image.close()
        raise _too_large()
    return image


def _lies(image: Image.Image) -> bool:
    """Is it shown on its side?"""
    try:
        return image.getexif().get(0x0112) in (5, 6, 7, 8)
    except Exception:  # `prepare` will say what is wrong with it
        return False


def _too_large() -> ImageError:
    return ImageError(f"it has more than {MAX_PIXELS >> 20} million pixels")
