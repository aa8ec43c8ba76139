"""From an image in a request to what a prompt says of it, and back to its pixels."""

from __future__ import annotations

import asyncio
import base64
import gc
import io
import os
import sys

import numpy as np
import pytest
from PIL import Image as Picture

from stoker.config import ImagesConfig
from stoker.models.vision.processor import ImageProcessor
from stoker.service import decoding, images
from stoker.service.decoding import Decoders
from stoker.service.images import ImageStore
from stoker.types.chat import Image
from stoker.types.errors import ErrorKind, StokerError

KIMI = ImageProcessor()


def png(width: int, height: int, seed: int = 0) -> bytes:
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    out = io.BytesIO()
    Picture.fromarray(values).save(out, "PNG")
    return out.getvalue()


def data_url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image(data: bytes, place: int = 0) -> Image:
    return Image(data_url(data), f"messages[0].content[{place}]")


class CountingDecoders(Decoders):
    def __init__(self, **settings: object) -> None:
        super().__init__(**settings)  # type: ignore[arg-type]
        self.count = 0

    async def decode(self, data: bytes, processor: ImageProcessor) -> decoding.Pixels:
        self.count += 1
        return await super().decode(data, processor)


@pytest.fixture
async def decoders():
    made = CountingDecoders()
    yield made
    await made.close()


@pytest.fixture
def store(decoders: CountingDecoders) -> ImageStore:
    return ImageStore(ImagesConfig(max_bytes=1 << 20), decoders=decoders)


async def refused(store: ImageStore, *found: Image) -> StokerError:
    with pytest.raises(StokerError) as failure:
        await store.load(found, KIMI, remember=True)
    assert failure.value.param == found[0].param
    assert f"'{found[0].param}'" in failure.value.message
    return failure.value


async def test_size_tokens_and_pixels(store: ImageStore, decoders: CountingDecoders) -> None:
    (loaded,) = await store.load([image(png(60, 20))], KIMI, remember=True)
    assert (loaded.height, loaded.width, loaded.tokens) == (28, 84, 3)
    assert len(loaded.digest) == 16
    pixels = await store.pixels(loaded.digest)
    assert len(pixels) == 28 * 84 * 3
    assert decoders.count == 1
    assert loaded.at(7) == images.ImageSpan(7, 3, 28, 84, loaded.digest)


async def test_what_came_before_is_not_decoded_again(store: ImageStore, decoders: CountingDecoders) -> None:
    found = [image(png(60, 20, seed), seed) for seed in (1, 2, 1)]
    first = await store.load(found, KIMI, remember=True)
    assert decoders.count == 2
    assert first[0] is first[2]
    second = await store.load([*found, image(png(30, 30, 9), 3)], KIMI, remember=True)
    assert decoders.count == 3
    assert [old.digest for old in first] == [new.digest for new in second[:3]]


async def test_nothing_of_a_forgetful_tenant_is_left(store: ImageStore, decoders: CountingDecoders) -> None:
    loaded = await store.load([image(png(60, 20))], KIMI, remember=False)
    digest = loaded[0].digest
    assert await store.pixels(digest)
    del loaded
    gc.collect()
    assert await store.pixels(digest) == b""
    await store.load([image(png(60, 20))], KIMI, remember=False)
    assert decoders.count == 2
    assert not store._sizes


async def test_pixels_are_had_while_the_request_lives_and_within_bounds(
    store: ImageStore, decoders: CountingDecoders, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 28 * 28 * 3
    monkeypatch.setattr(images, "PIXEL_BYTES", 2 * size)
    loaded = await store.load([image(png(28, 28, seed), seed) for seed in range(4)], KIMI, remember=True)
    kept = [item for item in loaded if item.pixels is not None]
    assert len(kept) == 2
    want = [await store.pixels(item.digest) for item in loaded]
    assert len(set(want)) == 4
    assert decoders.count >= 6
    assert sum(item.pixels is not None for item in loaded) == 2
    digests = [item.digest for item in loaded]
    del loaded, kept
    gc.collect()
    assert [await store.pixels(digest) for digest in digests] == [b""] * 4


async def test_the_digest_tells_all_apart_that_the_model_sees_differently(store: ImageStore) -> None:
    small = ImageProcessor(max_patches=16)
    files = [png(60, 20, 1), png(60, 20, 2), png(20, 60, 1)]
    one = [await store.load([image(file)], KIMI, remember=True) for file in files]
    other = [await store.load([image(file)], small, remember=True) for file in files]
    assert len({item[0].digest for item in (*one, *other)}) == 6


@pytest.mark.parametrize("kind", ["image/png", "image/jpeg", "", "image/x-unknown"])
async def test_what_counts_is_what_is_in_the_file(store: ImageStore, kind: str) -> None:
    found = Image(data_url(png(30, 30), kind), "x")
    assert (await store.load([found], KIMI, remember=True))[0].tokens == 4


async def test_white_space_and_parameters_in_data_urls(store: ImageStore) -> None:
    text = base64.b64encode(png(30, 30)).decode()
    for url in (f"data:image/png;base64, {text[:40]}\n{text[40:]}\n", f"DATA:image/png;charset=utf-8;BASE64,{text}"):
        assert (await store.load([Image(url, "x")], KIMI, remember=True))[0].tokens == 4


@pytest.mark.parametrize(
    "url",
    [
        "data:image/png;base64,",
        "data:image/png;base64,????",
        "data:image/png;base64,AAA",
        "data:image/png,abc",
        "data:text/html;base64,PGI+",
        "data:",
        data_url(b"GIF89a"),
        data_url(b"<svg xmlns='http://www.w3.org/2000/svg'/>"),
        data_url(png(50, 50)[:60]),
    ],
)
async def test_what_is_no_image(store: ImageStore, url: str) -> None:
    error = await refused(store, Image(url, "messages[3].content[1]"))
    assert (error.kind, error.code) == (ErrorKind.INVALID, "invalid_image")


async def test_bounds(store: ImageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (await refused(store, Image(data_url(b"x" * ((1 << 20) + 1)), "x"))).code == "image_too_large"
    assert (await refused(store, Image("ftp://x/y", "y"))).code == "image_url_refused"
    monkeypatch.setattr(images, "MAX_IMAGES", 1)
    with pytest.raises(StokerError, match="2 images, above 1") as failure:
        await store.load([image(png(30, 30)), image(png(30, 30), 1)], KIMI, remember=True)
    assert failure.value.param == "messages[0].content[1]"


async def test_one_bad_image_among_good_ones_is_named(store: ImageStore) -> None:
    good = [image(png(30, 30, seed), seed) for seed in range(5)]
    with pytest.raises(StokerError) as failure:
        await store.load([*good, Image(data_url(b"?"), "bad"), image(png(30, 30, 9))], KIMI, remember=True)
    assert failure.value.param == "bad"


def script(body: str) -> tuple[str, ...]:
    """A decoding process that does as told once it is ready."""
    return (sys.executable, "-c", "import sys, os, time\nprint('{}', flush=True)\nsys.stdin.readline()\n" + body)


@pytest.mark.parametrize(
    "body",
    [
        "os._exit(1)",
        "os.kill(os.getpid(), 11)",
        'print(\'{"height":-1,"width":5}\', flush=True); time.sleep(60)',
        'print(\'{"height":99999,"width":99999}\', flush=True); time.sleep(60)',
        "print('no json', flush=True); time.sleep(60)",
        "print('x' * 1000000, flush=True); time.sleep(60)",
    ],
)
async def test_a_decoder_that_breaks_is_replaced_and_costs_one_request(body: str) -> None:
    decoders = Decoders(command=script(body))
    try:
        for _ in range(3):
            with pytest.raises(StokerError) as failure:
                await decoders.decode(png(30, 30), KIMI)
            assert (failure.value.kind, failure.value.code) == (ErrorKind.INVALID, "invalid_image")
    finally:
        await decoders.close()


async def test_a_decoder_that_takes_too_long_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SECONDS", 0.3)
    decoders = Decoders(command=script("time.sleep(60)"))
    try:
        with pytest.raises(StokerError, match=r"more than 0\.3 seconds"):
            await decoders.decode(png(30, 30), KIMI)
        assert all(worker._process is None for worker in decoders._workers)
    finally:
        await decoders.close()


async def test_whoever_leaves_takes_no_answer_of_another(decoders: CountingDecoders) -> None:
    tasks = [asyncio.create_task(decoders.decode(png(30, 30, seed), KIMI)) for seed in range(6)]
    await asyncio.sleep(0.05)
    for task in tasks[:4]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (await decoders.decode(png(200, 30), KIMI)).width == 224
    assert tasks[5].result().width == 56


async def test_too_many_are_refused(decoders: CountingDecoders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "WAITING", 1)
    first = asyncio.create_task(decoders.decode(png(30, 30), KIMI))
    await asyncio.sleep(0)
    with pytest.raises(StokerError) as failure:
        await decoders.decode(png(30, 30), KIMI)
    assert failure.value.kind is ErrorKind.CAPACITY
    await first


async def test_no_process_is_left(store: ImageStore, decoders: CountingDecoders) -> None:
    await store.load([image(png(30, 30))], KIMI, remember=True)
    pids = [worker._process.pid for worker in decoders._workers if worker._process is not None]
    assert pids
    await store.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
