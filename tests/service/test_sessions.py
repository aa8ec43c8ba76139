"""How far a session's new prompt follows an earlier one, what of its links need not be made anew, and that what is
remembered of sessions is bounded."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.engine import chain
from stoker.engine.chain import LINK_BYTES, Chain, ChainRoot, ChainScheme
from stoker.service.divergence import Divergence
from stoker.service.sessions import Sessions, cache_domain
from stoker.types.wire import ImageSpan

IDS = st.lists(st.integers(0, 3), max_size=40)
SCHEME = ChainScheme(b"k" * 32, "model", 4)


def words(start: int, count: int) -> list[int]:
    return [(start * 7919 + place * 104729) % 163840 for place in range(count)]


class Watch(Sessions):
    """Checks the links of every prompt against a chain that is made in one go; returns the divergence."""

    def __init__(self, **bounds: int) -> None:
        super().__init__(SCHEME, **bounds)

    def see(self, tenant: str, session: str, ids: list[int]) -> Divergence | None:
        found, links = self.observe(tenant, session, ids)
        assert links == self.links(tenant, ids) == made_by_the_engine(tenant, ids)
        return found

    @property
    def counted(self) -> int:
        return sum(prompt.size for prompts in self._sessions.values() for prompt in prompts)


def made_by_the_engine(tenant: str, ids: list[int]) -> bytes:
    whole = Chain(ChainRoot(fingerprint="model", domain=cache_domain(tenant)), SCHEME.key, SCHEME.page)
    whole.extend(ids)
    return b"".join(whole.links)


def test_the_first_prompt_has_nothing_to_be_compared_with() -> None:
    watch = Watch()
    assert watch.see("t", "s", [1, 2, 3]) is None
    assert watch.see("t", "other", [1, 2, 3]) is None
    assert watch.see("other", "s", [1, 2, 3]) is None


def test_a_prompt_that_goes_on_shares_all_and_loses_nothing() -> None:
    watch = Watch()
    prompt = words(1, 500)
    watch.see("t", "s", prompt)
    for turn in range(2, 6):
        before = len(prompt)
        prompt = prompt + words(turn, 100)
        found = watch.see("t", "s", prompt)
        assert found == Divergence(shared=before, of=before, resent=True)
        assert found.lost == 0


def test_a_clock_early_in_the_prompt_is_told_with_its_place() -> None:
    watch = Watch()
    head, rest = words(1, 20), words(2, 3000)
    watch.see("t", "s", [*head, 111, *rest])
    found = watch.see("t", "s", [*head, 222, *rest, *words(3, 50)])
    assert found == Divergence(shared=20, of=3021, resent=True)
    assert found.lost == 3001
    longer = watch.see("t", "s", [*head, 5, 6, 7, *rest, *words(3, 50), *words(4, 50)])
    assert longer is not None
    assert (longer.shared, longer.resent) == (20, True), "also where it grew and everything moved"


def test_another_opening_of_the_answer_is_still_the_same_conversation() -> None:
    watch = Watch()
    prompt = words(1, 500)
    watch.see("t", "s", [*prompt, 11, 12])
    assert watch.see("t", "s", [*prompt, 12, *words(2, 50)]) == Divergence(shared=500, of=502, resent=True)


def test_another_thread_of_the_session_is_not_taken_for_a_loss() -> None:
    watch = Watch()
    main, title = words(1, 1000), words(2, 200)
    watch.see("t", "s", main)
    other = watch.see("t", "s", title)
    assert other == Divergence(shared=0, of=1000, resent=False)
    assert other.lost == 0
    found = watch.see("t", "s", main + words(3, 10))
    assert found == Divergence(shared=1000, of=1000, resent=True)
    again = watch.see("t", "s", title + words(4, 10))
    assert again == Divergence(shared=200, of=200, resent=True)


def test_the_number_of_prompts_and_sessions_and_their_tokens_are_bounded() -> None:
    watch = Watch(sessions=3, prompts=2, size=8 * 1000)
    for session in range(10):
        for thread in range(5):
            watch.see("t", str(session), words(100 * session + thread, 100))
    assert watch._held == watch.counted
    assert list(watch._sessions) == [("t", "7"), ("t", "8"), ("t", "9")]
    assert all(len(prompts) == 2 for prompts in watch._sessions.values())
    watch.see("t", "big", words(5, 900))
    assert watch._held <= 8 * 1000
    assert watch.see("t", "big", words(5, 901)) == Divergence(shared=900, of=900, resent=True)
    assert watch.see("t", "huge", words(6, 1001)) is None
    assert watch.see("t", "huge", words(6, 1001)) is None, "longer than all there is room for"
    assert watch._held == watch.counted


@given(IDS, IDS)
def test_the_shared_start_is_the_common_prefix(old: list[int], new: list[int]) -> None:
    watch = Watch()
    watch.see("t", "s", old)
    found = watch.see("t", "s", new)
    common = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    assert found is not None
    assert (found.shared, found.of) == (common, len(old))


def test_several_threads_may_observe() -> None:
    watch = Watch(sessions=5, prompts=2, size=8 * 5000)

    def run(seed: int) -> None:
        for turn in range(50):
            watch.see("t", str((seed + turn) % 7), words(seed, 10 + turn))

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert watch._held == watch.counted


def test_what_is_shared_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    blake2b = chain.blake2b

    def counting(*args: object, **more: object) -> object:
        nonlocal made
        made += 1
        return blake2b(*args, **more)

    monkeypatch.setattr(chain, "blake2b", counting)
    sessions = Sessions(SCHEME)
    prompt = words(1, 1000)
    for turn, new in ((1, 1000), (2, 42), (3, 42)):
        prompt = prompt if turn == 1 else prompt + words(turn, new)
        made = 0
        _, links = sessions.observe("t", "s", prompt)
        assert len(links) == len(prompt) // SCHEME.page * LINK_BYTES
        assert made <= 1 + new // SCHEME.page + 1, "the root, the new pages, and the one that was not full"
    made = 0
    sessions.observe("other", "s", prompt)
    assert made == 1 + len(prompt) // SCHEME.page, "nothing is taken over from another tenant"


def test_tenants_and_models_share_no_link() -> None:
    ids = words(1, 64)
    mine = Sessions(SCHEME).links("a", ids)
    others = [Sessions(SCHEME).links("b", ids), Sessions(ChainScheme(SCHEME.key, "another model", 4)).links("a", ids)]
    parts = [{links[at : at + LINK_BYTES] for at in range(0, len(links), LINK_BYTES)} for links in (mine, *others)]
    assert len(set.union(*parts)) == 3 * 16


def test_without_a_scheme_there_are_no_links() -> None:
    sessions = Sessions()
    assert sessions.links("t", [1] * 100) == b""
    assert sessions.observe("t", "s", [1] * 100) == (None, b"")
    assert sessions.observe("t", "s", [1] * 101) == (Divergence(shared=100, of=100, resent=True), b"")


@given(st.lists(st.tuples(st.sampled_from("ab"), IDS), max_size=8))
def test_links_are_right_whatever_came_before(prompts: list[tuple[str, list[int]]]) -> None:
    watch = Watch(sessions=2, prompts=2, size=400)
    for session, ids in prompts:
        watch.see("t", session, ids)
        assert watch._held == watch.counted <= 400


def spans(*found: tuple[int, int]) -> list[ImageSpan]:
    """(start, which image), five tokens each."""
    return [ImageSpan(start, 5, 28, 140, bytes([name]) * 16) for start, name in found]


@pytest.mark.parametrize(
    ("then", "shared"),
    [
        (spans((10, 1), (30, 2)), 100),
        (spans((10, 1), (30, 3)), 30),
        (spans((10, 3), (30, 2)), 10),
        (spans((10, 1)), 30),
        (spans((10, 1), (30, 2), (60, 4)), 60),
        (spans(), 10),
    ],
)
def test_links_are_taken_over_only_up_to_an_image_that_changed(then: list[ImageSpan], shared: int) -> None:
    """The ids are the same: those of all images are."""
    sessions = Sessions(SCHEME)
    prompt = words(1, 100)
    sessions.observe("t", "s", prompt, spans((10, 1), (30, 2)))
    divergence, links = sessions.observe("t", "s", prompt, then)
    assert divergence is not None
    assert divergence.shared == shared
    assert links == sessions.links("t", prompt, then)
    whole = Chain(ChainRoot(fingerprint="model", domain=cache_domain("t")), SCHEME.key, SCHEME.page, images=then)
    whole.extend(prompt)
    assert links == b"".join(whole.links)
