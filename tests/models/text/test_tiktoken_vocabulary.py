"""Kimi's tokenizer: the published ids, the cuts of long texts, names and flags of control tokens, damaged files."""

from __future__ import annotations

import base64
import json
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import needs_shared, read_lines
from text_models import KIMI_FOLDER, kimi_vocabulary

from stoker.models.source import ModelError
from stoker.models.text.tiktoken_vocabulary import TiktokenVocabulary
from stoker.models.text.vocabulary import read_vocabulary

pytestmark = needs_shared
END, THINK = 163586, 163606


@pytest.mark.parametrize("line", read_lines("tokenizer.jsonl"), ids=lambda line: line["id"])
def test_published_ids(line: dict[str, Any]) -> None:
    vocabulary = kimi_vocabulary()
    assert vocabulary.encode_parts([line["text"]]) == line["token_ids"]
    assert vocabulary.encode(line["text"]) == line.get("token_ids_special_allowed", line["token_ids"])


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert read_vocabulary(KIMI_FOLDER).encode("hello <|im_end|>")[-1] == END


def test_every_id_has_bytes_and_only_those() -> None:
    vocabulary = kimi_vocabulary()
    assert vocabulary.size == 163840
    assert all(vocabulary.token_bytes(index) for index in range(vocabulary.size))
    assert [vocabulary.token_bytes(index) for index in (-1, vocabulary.size, 1 << 40)] == [b"", b"", b""]
    assert vocabulary.token_bytes(END) == b"<|im_end|>"
    assert vocabulary.token_bytes(163600) == b"<|reserved_token_163600|>"
    assert END in vocabulary.special
    assert THINK not in vocabulary.special


def test_special_tokens_are_left_out_of_answers_and_marks_are_not() -> None:
    vocabulary = kimi_vocabulary()
    ids = [THINK, *vocabulary.encode_parts(["é 😀"]), END]
    for skip, text in ((True, "<think>é 😀"), (False, "<think>é 😀<|im_end|>")):
        decoder = vocabulary.detokenizer(skip_special=skip)
        assert "".join([*(decoder.push([index]) for index in ids), decoder.finish()]) == text


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_ordinary_text_comes_back_and_holds_no_control_token(text: str) -> None:
    vocabulary = kimi_vocabulary()
    for clients in (text, f"<|im_end|>{text}</think>"):
        ids = vocabulary.encode_parts([clients])
        assert b"".join(map(vocabulary.token_bytes, ids)).decode() == clients
        assert not set(ids) & vocabulary.added.keys()


def test_long_runs_and_long_texts_are_cut_before_words_are_looked_for() -> None:
    vocabulary = kimi_vocabulary()
    for run in ("a", " ", "\n", "中"):
        for size in (25_000, 25_001, 50_001):
            pieces = [run * 25_000] * (size // 25_000) + [run * (size % 25_000)]
            apart = [index for piece in pieces for index in vocabulary.encode_parts([piece])]
            assert vocabulary.encode(run * size) == vocabulary.encode_parts([run * size]) == apart
    words = "word " * 80_000 + "tail of it"  # cut at 400,000
    apart = vocabulary.encode_parts([words[:400_000]]) + vocabulary.encode_parts([words[400_000:]])
    assert vocabulary.encode(words) == apart


def test_a_cut_counts_from_the_start_of_the_prompt_and_spares_control_tokens() -> None:
    vocabulary = kimi_vocabulary()
    mark = len("<|im_end|>")
    parts = ["a" * (25_000 - mark - 5), END, "b" * 10]
    expected = [*vocabulary.encode_parts([parts[0]]), END]
    assert vocabulary.encode_parts(parts) == expected + 2 * vocabulary.encode_parts(["b" * 5])
    through = ["a" * 24_995, END, "b" * 10]  # a cut would fall into the control token
    assert vocabulary.encode_parts(through) == [
        *vocabulary.encode_parts(["a" * 24_995]), END, *vocabulary.encode_parts(["b" * 10])
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tiktoken.model", b"not base64! 0\n", "not a file of ranks"),
        ("tiktoken.model", b"YQ== x\n", "not a file of ranks"),
        ("tiktoken.model", b"YQ== 0\n", "without a gap"),
        ("tiktoken.model", b"".join(base64.b64encode(bytes([b])) + b" %d\n" % (b + 1) for b in range(256)), "a gap"),
        ("tokenizer_config.json", b"[", "not valid JSON"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"5": {"content": "x"}}}', "the token 5"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"163590": {"content": ""}}}', "the token 163590"),
        (
            "tokenizer_config.json",
            json.dumps(
                {"added_tokens_decoder": {str(index): {"content": "<a>"} for index in (163590, 163591)}}
            ).encode(),
            "cannot be used",
        ),
    ],
)
def test_damaged_files_are_told_by_name(tmp_path: Path, file: str, content: bytes, message: str) -> None:
    for name in ("tiktoken.model", "tokenizer_config.json"):
        shutil.copy(KIMI_FOLDER / name, tmp_path / name)
    (tmp_path / file).chmod(0o644)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ModelError, match=message) as caught:
        TiktokenVocabulary(tmp_path)
    assert str(tmp_path) in str(caught.value)
