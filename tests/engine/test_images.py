"""Images in prompts, through the real scheduler: pixels are asked for when they are needed and no sooner, features are
where a step needs them and nowhere else, and no image is ever taken for another."""

from __future__ import annotations

import random

import pytest
from scheduler_harness import Rig, ids, pixels_of

from stoker.engine.images import AHEAD_BYTES, ImageLimits
from stoker.types.errors import ErrorKind, StokerError
from stoker.types.wire import ImageSpan

PAD = 3
TOKEN_BYTES = 10
ROOMY = ImageLimits(token_bytes=TOKEN_BYTES, memory=10_000, step_tokens=1000)


def span(name: int, start: int, tokens: int) -> ImageSpan:
    """Six pixels a token; the same name is the same image."""
    return ImageSpan(start, tokens, tokens, 6, bytes([name, tokens]) * 8)


def prompt(length: int, images: list[ImageSpan], seed: int = 0) -> list[int]:
    found = ids(length, seed)
    for image in images:
        found[image.start : image.start + image.tokens] = [PAD] * image.tokens
    return found


class SeeingRig(Rig):
    """Plays the clients too: what was asked for, and what it answers when told to."""

    def __init__(self, limits: ImageLimits = ROOMY, **bounds: int) -> None:
        super().__init__(images=limits, **bounds)  # type: ignore[arg-type]
        self.asked: list[tuple[str, bytes]] = []

    def see(self, name: str, length: int, images: list[ImageSpan], seed: int = 0, **more: object) -> None:
        self.add(name, prompt(length, images, seed), images=images, **more)  # type: ignore[arg-type]

    def listen(self) -> list[tuple[str, bytes]]:
        new = self.scheduler.images.asked()
        self.asked += new
        return new

    def answer(self, request: str, digest: bytes) -> list[str]:
        image = next(image for image in self.requests[request].images if image.digest == digest)
        return self.scheduler.images.supply(digest, pixels_of(image))

    def serve(self, limit: int = 1000) -> None:
        """Steps until nothing is left; every question is answered at once."""
        for _ in range(limit):
            made = self.step()
            for request, digest in self.listen():
                assert self.answer(request, digest) == []
            if made is None and self.scheduler.idle:
                break
        self.drain()


def test_pixels_are_asked_for_once_and_text_goes_ahead() -> None:
    rig = SeeingRig(step_tokens=100)
    rig.see("a", 30, [span(1, 10, 8)])
    plan = rig.step()
    assert plan is not None
    assert [work.count for work in plan.work] == [10]  # what is before the image needs nobody
    assert rig.listen() == [("a", span(1, 10, 8).digest)]
    assert rig.step() is None
    assert rig.listen() == []
    assert rig.answer("a", span(1, 10, 8).digest) == []
    plan = rig.step()
    assert plan is not None
    assert [work.count for work in plan.work] == [20]
    assert len(plan.encode) == 1
    rig.drain()
    rig.assert_as_expected("a")


@pytest.mark.parametrize("step_tokens", [1, 2, 3, 5, 7, 16])
def test_a_border_of_chunks_within_an_image(step_tokens: int) -> None:
    rig = SeeingRig(step_tokens=step_tokens)
    rig.see("a", 40, [span(1, 3, 9), span(2, 12, 5), span(3, 30, 4)])
    rig.serve()
    rig.assert_as_expected("a")
    assert rig.executor.encoded == [span(name, 0, size).digest for name, size in ((1, 9), (2, 5), (3, 4))]


def test_an_image_in_the_prefix_cache_is_not_asked_for() -> None:
    rig = SeeingRig(step_tokens=100)
    history = [span(1, 4, 8), span(2, 14, 6)]
    rig.see("first", 24, history)
    rig.serve()
    asked = len(rig.asked)
    rig.see("next", 44, [*history, span(3, 30, 4)])
    rig.serve()
    rig.assert_as_expected("next")
    assert rig.last["next"].cached == 24
    assert rig.asked[asked:] == [("next", span(3, 30, 4).digest)]


def test_a_prefix_that_ends_within_an_image() -> None:
    """Its KV is there up to a page in the middle: the rest needs the features again."""
    rig = SeeingRig(ImageLimits(token_bytes=TOKEN_BYTES, memory=100, step_tokens=1000), step_tokens=100)
    rig.see("first", 12, [span(1, 2, 9)])
    rig.serve()
    rig.see("evicts", 12, [span(2, 2, 9)], seed=1)
    rig.serve()
    rig.see("again", 12, [span(1, 2, 9)])
    rig.serve()
    rig.assert_as_expected("again")
    assert rig.last["again"].cached == 8
    assert rig.executor.encoded == [span(name, 0, 9).digest for name in (1, 2, 1)]


def test_another_image_in_the_same_place_is_another_prompt() -> None:
    rig = SeeingRig(step_tokens=100)
    prompts = {name: [span(1, 8, 6), span(name, 20, 6)] for name in (2, 4, 5)}
    for name, images in prompts.items():
        rig.see(f"r{name}", 40, images)
        rig.serve()
        rig.assert_as_expected(f"r{name}")
    assert [rig.last[f"r{name}"].cached for name in prompts] == [0, 20, 20]
    outputs = {tuple(rig.tokens[f"r{name}"]) for name in prompts}
    assert len(outputs) == 3


def test_the_same_image_at_another_place_is_encoded_once_and_computed_anew() -> None:
    rig = SeeingRig(step_tokens=100)
    for place in (8, 9, 12):
        rig.see(f"r{place}", 40, [span(1, place, 6)], seed=place)
        rig.serve()
        rig.assert_as_expected(f"r{place}")
        assert rig.last[f"r{place}"].cached == 0
    assert len(rig.executor.encoded) == len(rig.asked) == 1


def test_tenants_share_no_features() -> None:
    rig = SeeingRig(step_tokens=100)
    for domain in ("a", "b", "a"):
        rig.see(domain, 20, [span(1, 4, 6)], domain=domain)
        rig.serve()
    assert [request for request, _ in rig.asked] == ["a", "b"]
    assert len(rig.executor.encoded) == 2


def test_choices_of_one_prompt_share_its_images() -> None:
    rig = SeeingRig(step_tokens=100)
    for choice in range(3):
        rig.see(f"c{choice}", 20, [span(1, 4, 6), span(1, 12, 6)])
    rig.serve()
    assert rig.asked == [("c0", span(1, 4, 6).digest)]
    assert len(rig.executor.encoded) == 1


def test_whoever_was_asked_may_leave() -> None:
    rig = SeeingRig(step_tokens=100)
    rig.see("a", 20, [span(1, 1, 6)])
    rig.see("b", 20, [span(1, 2, 6)], seed=1)
    rig.step()
    assert rig.listen() == [("a", span(1, 1, 6).digest)]
    rig.abort("a")
    rig.serve()
    assert [request for request, _ in rig.asked] == ["a", "b"]
    rig.assert_as_expected("b")


def test_what_is_lost_ends_the_requests_that_need_it() -> None:
    rig = SeeingRig(step_tokens=100)
    rig.see("a", 20, [span(1, 1, 6)])
    rig.see("b", 20, [])
    rig.step()
    rig.listen()
    digest = span(1, 1, 6).digest
    assert rig.scheduler.images.supply(b"x" * 16, b"") == []
    assert rig.scheduler.images.supply(digest, b"too short") == ["a"]
    assert rig.scheduler.images.supply(digest, b"") == ["a"]
    rig.abort("a")
    assert rig.scheduler.images.supply(digest, b"") == []
    rig.drain()
    rig.assert_as_expected("b")


def test_a_step_encodes_no_more_than_it_may() -> None:
    rig = SeeingRig(ImageLimits(token_bytes=TOKEN_BYTES, memory=10_000, step_tokens=10), step_tokens=100)
    rig.see("a", 60, [span(1, 1, 6), span(2, 10, 4), span(3, 20, 20), span(4, 50, 3)])
    rig.serve()
    rig.assert_as_expected("a")
    encoded = [[image.height for image in plan.encode] for plan in rig.plans if plan.encode]
    assert encoded == [[6, 4], [20], [3]]


def test_one_image_above_the_memory_is_taken_alone() -> None:
    rig = SeeingRig(ImageLimits(token_bytes=TOKEN_BYTES, memory=50, step_tokens=100), step_tokens=100)
    rig.see("a", 60, [span(1, 1, 9), span(2, 12, 4), span(3, 20, 9)])
    rig.serve()
    rig.assert_as_expected("a")
    assert len(rig.executor.features) == 1


def test_pixels_are_asked_for_ahead_within_bounds() -> None:
    rig = SeeingRig(step_tokens=100, context=10_000)
    side = 1024  # 3 MiB each
    images = [ImageSpan(2 * place, 1, side, side, bytes([place]) * 16) for place in range(40)]
    rig.add("a", prompt(90, images), images=images)
    assert rig.step() is None
    asked = rig.listen()
    assert len(asked) == AHEAD_BYTES // (side * side * 3)
    for request, digest in asked:
        rig.answer(request, digest)
    rig.serve()
    rig.assert_as_expected("a")


def test_images_where_none_are_taken() -> None:
    rig = Rig()
    with pytest.raises(StokerError) as failure:
        rig.add("a", prompt(10, [span(1, 2, 3)]), images=[span(1, 2, 3)])
    assert failure.value.kind is ErrorKind.INVALID


@pytest.mark.parametrize(
    "images",
    [
        [span(1, 5, 6)],
        [span(1, 4, 3), span(1, 2, 1)],
        [span(1, 2, 3), span(1, 4, 3)],
        [ImageSpan(0, 0, 1, 1, b"x" * 16)],
        [ImageSpan(0, 1, 1, 1, b"x" * 15)],
        [ImageSpan(0, 1, 0, 1, b"x" * 16)],
        [ImageSpan(-1, 1, 1, 1, b"x" * 16)],
    ],
)
def test_images_that_cannot_be_there(images: list[ImageSpan]) -> None:
    rig = SeeingRig()
    with pytest.raises(StokerError) as failure:
        rig.add("a", ids(10), images=images)
    assert failure.value.kind is ErrorKind.INTERNAL
    assert rig.scheduler.idle


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_everybody_sees_the_right_images(seed: int) -> None:
    """Few images, many requests, pools too small for them: preemption, eviction, answers that come late, aborts."""
    draw = random.Random(seed)
    limits = ImageLimits(token_bytes=1, memory=draw.choice([1, 12, 30, 1000]), step_tokens=draw.choice([1, 9, 1000]))
    rig = SeeingRig(limits, blocks=draw.choice([16, 24, 64]), step_tokens=draw.choice([3, 8, 30]), max_running=5)
    late: list[tuple[str, bytes]] = []
    names: list[str] = []
    aborted: set[str] = set()
    for _ in range(400):
        if len(names) < 30 and draw.random() < 0.2:
            images: list[ImageSpan] = []
            at = draw.randint(0, 6)
            while draw.random() < 0.7 and len(images) < 4:
                images.append(span(draw.randint(1, 3), at, draw.randint(1, 9)))
                at = images[-1].start + images[-1].tokens + draw.randint(0, 3)
            names.append(f"r{len(names)}")
            domain = draw.choice(["", "", "other"])
            rig.see(names[-1], at + draw.randint(1, 6), images, seed=draw.randint(0, 2), domain=domain)
        if names and draw.random() < 0.03:
            aborted.add(name := draw.choice(names))
            rig.abort(name)
        rig.step()
        late += rig.listen()
        draw.shuffle(late)
        while late and draw.random() < 0.6:
            rig.answer(*late.pop())
        assert set(rig.executor.features) == set(rig.scheduler.images._held)
    for request, digest in late:
        rig.answer(request, digest)
    rig.serve()
    for name in names:
        if name not in aborted:
            rig.assert_as_expected(name)
    state = rig.scheduler.images
    assert state._ahead == 0
    assert {image.number for image in state._known.values()} == set(state._held) == set(rig.executor.features)
    assert state.held_bytes <= max(limits.memory, 9)
