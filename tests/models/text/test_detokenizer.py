"""Incremental decoding against the tokenizers library decoding everything at once, for every way to cut the ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from stoker.models.source import ModelError
from stoker.models.text.detokenizer import Detokenizer, Pieces, detokenizer
from stoker.models.text.model import TextModel

CUTS = st.lists(st.integers(1, 5), max_size=40)


def in_pieces(target: Detokenizer, ids: list[int], cuts: list[int]) -> list[str]:
    texts: list[str] = []
    for size in [*cuts, len(ids)]:
        texts.append(target.push(ids[:size]))
        ids = ids[size:]
    return [*texts, target.finish()]


@pytest.fixture(scope="module")
def fallback() -> Tokenizer:
    """A SentencePiece-like vocabulary: words with the space mark, all bytes, special and plain added tokens."""
    words = ["<unk>", "\u2581", "a", "b", "\u2581the", "é", "日", "\u2581\u2581", "x y", "\ufffd"]
    vocabulary = {word: index for index, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_tokens([AddedToken("<s>", special=True), AddedToken("<tool>", special=False)])
    return tokenizer


@pytest.fixture(scope="module")
def byte_level(demo_text: TextModel) -> Tokenizer:
    """The demo's tokenizer and added tokens that are no byte-level text: such as hold a space or other scripts."""
    tokenizer = Tokenizer.from_str(demo_text.vocabulary.tokenizer.to_str())
    tokenizer.add_tokens([AddedToken("<｜User｜>", special=True), AddedToken("two words", special=False)])
    return tokenizer


@settings(max_examples=300, deadline=None)
@given(data=st.data(), cuts=CUTS, skip=st.booleans())
def test_byte_level(byte_level: Tokenizer, data: st.DataObject, cuts: list[int], skip: bool) -> None:
    ids = data.draw(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 49_160)), max_size=60))
    texts = in_pieces(detokenizer(Pieces(byte_level), skip_special=skip), ids, cuts)
    assert "".join(texts) == byte_level.decode(ids, skip_special_tokens=skip)


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=40))
def test_text_comes_back_and_early(tiny_text: TextModel, text: str) -> None:
    ids = tiny_text.encode(text)
    target = tiny_text.detokenizer(skip_special=False)
    got = ""
    for count, index in enumerate(ids, 1):
        got += target.push([index])
        whole = b"".join(map(tiny_text.token_bytes, ids[:count])).decode("utf-8", "ignore")
        assert got == whole, "every complete character is out as soon as its bytes are in"
    assert got + target.finish() == text


@settings(max_examples=500, deadline=None)
@given(data=st.data(), cuts=CUTS, skip=st.booleans())
def test_byte_fallback(fallback: Tokenizer, data: st.DataObject, cuts: list[int], skip: bool) -> None:
    text_bytes = st.text(min_size=1, max_size=3).map(lambda text: [10 + byte for byte in text.encode()])
    some = st.one_of(st.integers(0, 9).map(lambda i: [i]), st.integers(0, 270).map(lambda i: [i]), text_bytes)
    ids = [index for run in data.draw(st.lists(some, max_size=20)) for index in run]
    texts = in_pieces(detokenizer(Pieces(fallback), skip_special=skip), ids, cuts)
    assert "".join(texts) == fallback.decode(ids, skip_special_tokens=skip)


def test_token_bytes(fallback: Tokenizer, demo_text: TextModel) -> None:
    pieces = Pieces(fallback)
    assert [pieces.bytes(index) for index in (4, 10, 265, 266, 999, -1)] == [b" the", b"\0", b"\xff", b"<s>", b"", b""]
    assert demo_text.token_bytes(2) == b"<|im_end|>"
    assert demo_text.token_bytes(1 << 70) == b""
    assert b"".join(map(demo_text.token_bytes, demo_text.encode("日本 \n"))) == "日本 \n".encode()


@pytest.mark.parametrize(
    "decoder",
    [
        decoders.WordPiece(),
        decoders.Metaspace(),
        decoders.Sequence([decoders.Replace("_", " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()]),
        None,
    ],
)
def test_other_decoders_are_refused(fallback: Tokenizer, decoder: decoders.Decoder | None) -> None:
    other = Tokenizer(fallback.model)
    if decoder is not None:
        other.decoder = decoder
    with pytest.raises(ModelError, match="decoder"):
        Pieces(other)
