from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine.chain import LINK_BYTES, LOGICAL_BLOCK, PAGE, Chain, ChainRoot, ChainScheme, pack
from stoker.types.wire import ImageSpan

KEY = b"k" * 32
ROOT = ChainRoot(fingerprint="model", adapter="none", domain="tenant")
IDS = list(range(1000, 1100))


def links(root: ChainRoot = ROOT, ids: list[int] = IDS, key: bytes = KEY, page: int = PAGE) -> list[bytes]:
    chain = Chain(root, key, page)
    chain.extend(ids)
    return chain.links


@given(st.lists(st.integers(0, 2**32 - 1), max_size=70), st.lists(st.integers(0, 70), max_size=5), st.integers(1, 17))
def test_growing_gives_the_same_links_as_at_once(ids: list[int], cuts: list[int], page: int) -> None:
    chain = Chain(ROOT, KEY, page)
    for cut in sorted(cuts):
        chain.extend(ids[:cut])
    chain.extend(ids)
    assert chain.links == links(ids=ids, page=page)
    assert len(chain.links) == len(ids) // page, "only full pages have a link"
    assert all(len(link) == LINK_BYTES == 16 for link in chain.links)


def test_a_link_stands_for_all_tokens_before_it() -> None:
    for position in range(len(links()) * PAGE):
        changed = list(IDS)
        changed[position] += 1
        same = [a == b for a, b in zip(links(), links(ids=changed), strict=True)]
        assert same == [page < position // PAGE for page in range(len(same))]


def test_every_field_of_the_root_changes_every_link() -> None:
    """T-43. The fields are enumerated from the type: a field added there is tested here."""
    for field in msgspec.structs.fields(ChainRoot):
        other = getattr(ROOT, field.name) + (1 if field.type is int else "x")
        changed = msgspec.structs.replace(ROOT, **{field.name: other})
        assert not set(links()) & set(links(changed)), field.name


def test_fields_cannot_run_into_each_other() -> None:
    assert ChainRoot(fingerprint="ab", adapter="c").link(KEY) != ChainRoot(fingerprint="a", adapter="bc").link(KEY)


def test_the_key_changes_every_link_and_must_be_there() -> None:
    assert not set(links()) & set(links(key=b"other"))
    with pytest.raises(ValueError, match="key"):
        ROOT.link(b"")


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_ids_that_do_not_fit_are_refused(wrong: int) -> None:
    with pytest.raises(OverflowError):
        links(ids=[wrong] * PAGE)


def test_links_are_the_same_in_every_process() -> None:
    """T-41: nothing depends on the hash seed of the interpreter, nor on this version of the code."""
    program = (
        "from stoker.engine.chain import Chain, ChainRoot\n"
        "chain = Chain(ChainRoot(fingerprint='model', adapter='none', domain='tenant'), b'k' * 32)\n"
        "chain.extend(list(range(1000, 1100)))\n"
        "print(chain.links[-1].hex())\n"
    )
    for seed in ("0", "1", "4242"):
        out = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert out.stdout.strip() == links()[-1].hex() == GOLDEN


GOLDEN = "19b009ffa09e0bea7676b3c248618942"


def test_a_logical_block_is_a_whole_number_of_pages() -> None:
    assert LOGICAL_BLOCK % PAGE == 0


@given(st.lists(st.integers(0, 2**32 - 1), max_size=300), st.integers(0, 300), st.sampled_from([4, 16, 64]))
def test_both_sides_make_the_same_links(ids: list[int], cut: int, page: int) -> None:
    """The service's, all at once or going on from a part, and the engine's, with or without those of the service."""
    scheme = ChainScheme(KEY, "model", page)
    root = scheme.root(adapter="none", domain="tenant")
    whole = scheme.extend(b"", root, pack(ids))
    assert [whole[at : at + LINK_BYTES] for at in range(0, len(whole), LINK_BYTES)] == links(ids=ids, page=page)
    known = scheme.within(whole, 4 * min(cut, len(ids)))
    assert len(known) == min(cut, len(ids)) // page * LINK_BYTES
    assert scheme.extend(known, root, pack(ids)) == whole
    chain = Chain(ROOT, KEY, page, known)
    chain.extend(ids)
    assert chain.links == links(ids=ids, page=page)
    assert scheme.blocks(whole) == links(ids=ids, page=page)[LOGICAL_BLOCK // page - 1 :: LOGICAL_BLOCK // page]


def test_a_scheme_does_not_show_its_key() -> None:
    assert "k" * 32 not in repr(ChainScheme(KEY, "model"))


SEEN = ImageSpan(20, 10, 56, 140, b"i" * 16)


def links_with(*images: ImageSpan) -> list[bytes]:
    chain = Chain(ROOT, KEY, PAGE, images=images)
    chain.extend(IDS)
    return chain.links


def test_an_image_changes_every_link_from_the_page_on_in_which_it_begins() -> None:
    """T-38, T-39. Its digest, its place in the page and its length: the ids are the same for all images."""
    plain, seen = links(), links_with(SEEN)
    assert [a == b for a, b in zip(plain, seen, strict=True)] == [True] + [False] * (len(plain) - 1)
    others = [
        msgspec.structs.replace(SEEN, digest=b"i" * 15 + b"j"),
        msgspec.structs.replace(SEEN, start=21),
        msgspec.structs.replace(SEEN, tokens=11),
    ]
    variants = [
        seen,
        *(links_with(other) for other in others),
        links_with(SEEN, others[1]),
        links_with(others[1], SEEN),
    ]
    assert len({variant[-1] for variant in variants}) == len({variant[1] for variant in variants}) == len(variants)
    far = links_with(SEEN, msgspec.structs.replace(SEEN, start=70))
    assert [a == b for a, b in zip(far, seen, strict=True)] == [True] * 4 + [False] * (len(far) - 4)


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 9), st.integers(0, 2)), max_size=5), st.integers(0, 90))
def test_images_grow_and_resume_like_ids(gaps: list[tuple[int, int, int]], cut: int) -> None:
    images: list[ImageSpan] = []
    for gap, tokens, name in gaps:
        start = gap + (images[-1].start + images[-1].tokens if images else 0)
        images.append(ImageSpan(start, tokens, 28, 28, bytes([name]) * 16))
    for page in (4, 16):
        whole = Chain(ROOT, KEY, page, images=images)
        whole.extend(IDS)
        grown = Chain(ROOT, KEY, page, images=images)
        grown.extend(IDS[:cut])
        known = b"".join(grown.links)
        grown.extend(IDS)
        assert grown.links == whole.links
        scheme = ChainScheme(KEY, ROOT.fingerprint, page)
        root = scheme.root(domain=ROOT.domain, adapter=ROOT.adapter)
        assert scheme.extend(known, root, pack(IDS), images) == b"".join(whole.links)
