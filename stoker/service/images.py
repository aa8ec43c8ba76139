"""The images of requests, from wherever they come to what a prompt says of them; and their pixels, when an engine asks.

An image is known by its digest: of the file's bytes, the size it gets, and the version of what makes pixels of it. So
an image that came before is neither decoded again nor, if its KV is cached, sent to an engine.

Owns the files of requests that are under way, and a bounded number of bytes of their pixels; after that only digests
and sizes are left, and of tenants that forbid it not even those. Where files come from is in `remote.py`, what is in
them in `decoding.py`.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from weakref import WeakValueDictionary

from stoker.config import ImagesConfig
from stoker.models.vision.processor import ImageProcessor
from stoker.service.decoding import Decoders, Pixels
from stoker.service.remote import RemoteImages
from stoker.types.chat import Image
from stoker.types.errors import StokerError, invalid
from stoker.types.wire import ImageSpan

MAX_IMAGES = 512  # of a request
PIXEL_BYTES = 64 << 20  # kept of open images, for the engines, which ask soon after
KNOWN = 65_536  # sizes of images that were decoded before, by digest of their file
DIGEST_BYTES = 16
_DATA = re.compile(r"data:(?:image/[\w.+-]+)?(?:;[\w=.+-]+)*?;base64,", re.IGNORECASE)
_SPACE = re.compile(r"\s+")


@dataclass(slots=True, weakref_slot=True, eq=False)
class LoadedImage:
    """An image as a prompt has it. It can be had by its digest for as long as somebody keeps this object; `pixels` are
    there while there is room for them."""

    digest: bytes
    height: int
    width: int
    tokens: int
    data: bytes
    processor: ImageProcessor
    pixels: bytes | None = None

    def at(self, start: int) -> ImageSpan:
        return ImageSpan(start, self.tokens, self.height, self.width, self.digest)


class ImageStore:
    """For all models of one server, in one event loop. `await close()` leaves no process."""

    def __init__(
        self, config: ImagesConfig, *, decoders: Decoders | None = None, remote: RemoteImages | None = None
    ) -> None:
        self._config = config
        self._decoders = decoders or Decoders()
        self._remote = remote or RemoteImages(config)
        self._open: WeakValueDictionary[bytes, LoadedImage] = WeakValueDictionary()
        self._sizes: OrderedDict[bytes, tuple[int, int]] = OrderedDict()
        self._recent: OrderedDict[bytes, None] = OrderedDict()  # images that have pixels

    async def load(self, images: Sequence[Image], processor: ImageProcessor, *, remember: bool) -> list[LoadedImage]:
        """The images of one request, each URL once. With `remember` the sizes of new ones are known from then on.
        Raises StokerError that names the place of the first that is no good."""
        if len(images) > MAX_IMAGES:
            text = f"The request has {len(images)} images, above {MAX_IMAGES}."
            raise invalid("too_many_images", text, param=images[MAX_IMAGES].param)
        first: dict[str, Image] = {}
        for image in images:
            first.setdefault(image.url, image)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {url: group.create_task(self._load(image, processor, remember)) for url, image in first.items()}
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [tasks[image.url].result() for image in images]

    async def pixels(self, digest: bytes) -> bytes:
        """Those of an image of a request that is under way; b"" if there is none."""
        image = self._open.get(digest)
        if image is None:
            return b""
        if image.pixels is None:
            pixels = await self._decoders.decode(image.data, image.processor)
            self._keep(image, pixels.data)
            return pixels.data
        self._recent.move_to_end(digest)
        return image.pixels

    async def close(self) -> None:
        await self._decoders.close()

    async def _load(self, image: Image, processor: ImageProcessor, remember: bool) -> LoadedImage:
        try:
            if image.url[:5].lower() == "data:":
                data = await asyncio.to_thread(_decode_url, image.url, self._config.max_bytes)
            else:
                data = await self._remote.fetch(image.url)
            return await self._measure(data, processor, remember)
        except StokerError as error:
            text = f"'{image.param}': {error.message}"
            raise StokerError(
                error.kind, error.code, text, param=image.param, retry_after=error.retry_after
            ) from error.__cause__

    async def _measure(self, data: bytes, processor: ImageProcessor, remember: bool) -> LoadedImage:
        """Its size, found by decoding it if that was never done: what cannot be decoded is refused here."""
        version = processor.version.encode()
        content = await asyncio.to_thread(lambda: blake2b(data, key=blake2b(version).digest()).digest())
        pixels: Pixels | None = None
        size = self._sizes.get(content)
        if size is None:
            pixels = await self._decoders.decode(data, processor)
            size = pixels.height, pixels.width
        if remember:
            self._sizes[content] = size
            self._sizes.move_to_end(content)
            while len(self._sizes) > KNOWN:
                self._sizes.popitem(last=False)
        height, width = size
        sides = height.to_bytes(4, "little") + width.to_bytes(4, "little")
        digest = blake2b(content + sides, digest_size=DIGEST_BYTES).digest()
        image = self._open.get(digest)
        if image is None:
            tokens = (height // processor.cell) * (width // processor.cell)
            image = self._open[digest] = LoadedImage(digest, height, width, tokens, data, processor)
        if pixels is not None:
            self._keep(image, pixels.data)
        return image

    def _keep(self, image: LoadedImage, pixels: bytes) -> None:
        """As the newest of those that have pixels; the oldest lose theirs."""
        image.pixels = pixels
        self._recent[image.digest] = None
        self._recent.move_to_end(image.digest)
        held = 0
        for digest in reversed(list(self._recent)):
            other = self._open.get(digest)
            if other is not None and other.pixels is not None:
                held += len(other.pixels)
                if held <= PIXEL_BYTES:
                    continue
                other.pixels = None
            del self._recent[digest]


def _decode_url(url: str, limit: int) -> bytes:
    """The bytes in a data URL. White space in them is allowed: one maker's own example has it."""
    match = _DATA.match(url)
    if match is None:
        raise invalid("invalid_image", "The image must be an https URL, or a data URL of an image in base64.")
    try:
        data = base64.b64decode(_SPACE.sub("", url[match.end() :]), validate=True)
    except (binascii.Error, ValueError):
        raise invalid("invalid_image", "The data URL is not valid base64.") from None
    if len(data) > limit:
        raise invalid("image_too_large", f"The image has more than {limit} bytes.")
    return data
