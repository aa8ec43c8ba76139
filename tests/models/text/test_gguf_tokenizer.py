"""The tokenizer made from GGUF metadata against byte-pair encoding written out plainly, and its refusals."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

from stoker.models.gguf_meta import read_metadata
from stoker.models.source import ModelError, ModelFiles
from stoker.models.text.gguf_tokenizer import from_metadata, special_texts

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
TEXTS = [
    "",
    " ",
    "Hello, world! It's 2024-12-31, isn't it? I'LL pay $1,234.56.",
    "def f(x):\n\treturn {'a': [x, 0x1F, 1e-9]}  # ok\n\n\n    pass\r\n",
    "naïve café, Größe, Ελληνικά, кириллица, العربية, हिन्दी",
    "日本語のテキスト、中文文本。한국어 ①②③ ½ ٣٤٥",
    "😀👩‍👩‍👧 e\u0301 \u200b\u00a0\u3000 \ufeff \x00\x01\x7f",
    "   leading,  double\t\ttabs and trailing   ",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
]


@pytest.fixture(scope="module")
def metadata(demo_files: ModelFiles) -> dict[str, Any]:
    return read_metadata(Path(str(demo_files.gguf))).metadata


@pytest.fixture(scope="module")
def demo(metadata: dict[str, Any]) -> Tokenizer:
    return from_metadata(metadata, "demo")


class PlainBPE:
    """Merge the best-ranked neighbours until none is left; no caches, no tricks."""

    def __init__(self, metadata: dict[str, Any], pattern: str, *, digits: bool, whole_words: bool = False) -> None:
        self.ids = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
        merges = metadata["tokenizer.ggml.merges"]
        self.ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(merges)}
        self.pattern, self.digits, self.whole_words = regex.compile(pattern), digits, whole_words
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = (chr(code) for code in range(256, 512))
        self.letters = {byte: chr(byte) if byte in printable else next(hidden) for byte in range(256)}

    def encode(self, text: str) -> list[int]:
        runs = regex.split(r"(\p{N})", text) if self.digits else [text]
        return [index for run in runs for word in self.pattern.findall(run) for index in self.word(word)]

    def word(self, word: str) -> list[int]:
        parts = [self.letters[byte] for byte in word.encode() if self.letters[byte] in self.ids]
        if self.whole_words and "".join(parts) in self.ids:
            return [self.ids["".join(parts)]]
        while len(parts) > 1:
            rank, place = min((self.ranks.get(pair, 1 << 30), at) for at, pair in enumerate(itertools.pairwise(parts)))
            if rank == 1 << 30:
                break
            parts[place : place + 2] = ["".join(parts[place : place + 2])]
        return [self.ids[part] for part in parts]


@pytest.fixture(scope="module")
def plain(metadata: dict[str, Any]) -> PlainBPE:
    return PlainBPE(metadata, GPT2, digits=True)


@pytest.mark.parametrize(
    ("family", "pattern", "digits", "whole_words"),
    [
        ("smollm", GPT2, True, False),
        ("gpt-2", GPT2, False, False),
        ("qwen2", QWEN2, False, False),
        ("llama-bpe", LLAMA, False, True),
    ],
)
def test_ids_are_those_of_plain_bpe(
    metadata: dict[str, Any], family: str, pattern: str, digits: bool, whole_words: bool
) -> None:
    reference = PlainBPE(metadata, pattern, digits=digits, whole_words=whole_words)
    tokenizer = from_metadata(metadata | {"tokenizer.ggml.pre": family}, "demo")
    for text in TEXTS:
        if family == "qwen2":
            text = tokenizer.normalizer.normalize_str(text)
        assert tokenizer.encode(text, add_special_tokens=False).ids == reference.encode(text), text


@settings(max_examples=150, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_makes_the_round_trip(demo: Tokenizer, plain: PlainBPE, text: str) -> None:
    """But for the few bytes, control characters mostly, that the demo's vocabulary has no token for: they vanish."""
    ids = demo.encode(text).ids
    assert demo.decode(ids) == bytes(byte for byte in text.encode() if plain.letters[byte] in plain.ids).decode(
        "utf-8", "replace"
    )
    assert ids == plain.encode(text)


def test_control_tokens_keep_their_ids(demo: Tokenizer) -> None:
    assert demo.encode("a<|im_end|>b<|im_start|>").ids[1::2] == [2, 1]
    assert sum(token.special for token in demo.get_added_tokens_decoder().values()) == 17


def test_begin_token_only_where_the_file_says_so(metadata: dict[str, Any]) -> None:
    assert from_metadata(metadata, "x").encode("a").ids[0] != 1
    assert from_metadata(metadata | {"tokenizer.ggml.add_bos_token": True}, "x").encode("a").ids[0] == 1
    llama = metadata | {"tokenizer.ggml.pre": "llama-bpe"}
    del llama["tokenizer.ggml.add_bos_token"]
    assert from_metadata(llama, "x").encode("a").ids[0] == 1


def test_special_names(metadata: dict[str, Any]) -> None:
    names = special_texts(metadata)
    assert names == {
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
    }


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tokenizer.ggml.pre": "martian"}, "'martian'"),
        ({"tokenizer.ggml.pre": None}, "None"),
        ({"tokenizer.ggml.model": "llama"}, "'llama'"),
        ({"tokenizer.ggml.merges": []}, "tokenizer.ggml.merges"),
        ({"tokenizer.ggml.tokens": 3}, "tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.merges": ["zzzzq qqqq"]}, "do not fit"),
    ],
)
def test_refusals_name_file_and_reason(metadata: dict[str, Any], changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as error:
        from_metadata(metadata | changes, "some.gguf")
    assert "some.gguf" in str(error.value)


def test_the_alphabet_of_the_reference_is_the_librarys(plain: PlainBPE) -> None:
    assert set(plain.letters.values()) == set(ByteLevel.alphabet())
