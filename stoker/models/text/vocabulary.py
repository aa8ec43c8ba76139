"""Texts to token ids and ids to bytes: what every tokenizer must do, and the `tokenizers` library's kind of it.

The library's `encode` holds the interpreter lock for as long as it takes, a second for a long prompt; its batch form
does not, so that is what is called even for one text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from tokenizers import AddedToken, Tokenizer
from tokenizers.pre_tokenizers import Metaspace

from stoker.models.source import ModelError
from stoker.models.text.control import is_control
from stoker.models.text.detokenizer import Detokenizer, Pieces, detokenizer
from stoker.models.text.memo import Known, nothing_known


class Vocabulary(Protocol):
    """Safe for several threads. `size` is one more than the largest id; `added` are the tokens that are found as whole
    strings before the text is cut into words, `special` the ids of those that are marked as special."""

    size: int
    added: Mapping[int, AddedToken]
    special: frozenset[int]

    def encode(self, text: str) -> list[int]:
        """A raw text: added tokens in it are recognised, and what the tokenizer itself adds (BOS) is added."""
        ...

    def encode_parts(self, parts: Sequence[str | int], known: Known = nothing_known) -> list[int]:
        """Ordinary texts, whose words never become control tokens, between the ids of control tokens. No two texts
        stand side by side."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes one token stands for, perhaps a part of a character; b"" for ids outside the vocabulary."""
        ...

    def detokenizer(self, *, skip_special: bool) -> Detokenizer:
        """For one output; `skip_special` leaves special tokens out of the text."""
        ...


def read_vocabulary(root: Path) -> Vocabulary:
    """The tokenizer in a model's folder. Raises ModelError."""
    file = root / "tokenizer.json"
    if not file.is_file() and (root / "tiktoken.model").is_file():
        from stoker.models.text.tiktoken_vocabulary import TiktokenVocabulary  # late: few models need the package

        return TiktokenVocabulary(root)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the binding raises bare Exceptions
        raise ModelError(f"{file} cannot be used: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return LibraryVocabulary(tokenizer, str(root))


class LibraryVocabulary:
    """A tokenizer of the `tokenizers` library, from a tokenizer.json or put together from a GGUF file's metadata."""

    def __init__(self, tokenizer: Tokenizer, where: str) -> None:
        """`where` names the file in errors. Raises ModelError when the tokenizer is of a kind that is not supported."""
        self.tokenizer = tokenizer
        self.added: Mapping[int, AddedToken] = tokenizer.get_added_tokens_decoder()
        ends = (index + 1 for index in self.added)
        self.size = max(tokenizer.get_vocab_size(with_added_tokens=False), *ends, 0)
        self._pieces = Pieces(tokenizer)
        self.special = self._pieces.special
        self._control = {index: token.content for index, token in self.added.items() if is_control(token)}
        self._ordinary = _without_control(tokenizer, where)
        self._inner = _after_start(self._ordinary)

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode_batch_fast([text])[0].ids

    def encode_parts(self, parts: Sequence[str | int], known: Known = nothing_known) -> list[int]:
        texts = [part for part in parts if isinstance(part, str)]
        first = 1 if parts and isinstance(parts[0], str) else 0
        head = self._encode(self._ordinary, texts[:first])
        encoded = iter([*head, *known(texts[first:], partial(self._encode, self._inner))])
        ids: list[int] = []
        for part in parts:
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += next(encoded)
        return ids

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces.bytes(token_id)

    def detokenizer(self, *, skip_special: bool) -> Detokenizer:
        return detokenizer(self._pieces, skip_special=skip_special)

    def _encode(self, tokenizer: Tokenizer, texts: list[str]) -> list[list[int]]:
        return [self._spelled(one.ids) for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def _spelled(self, ids: list[int]) -> list[int]:
        """A vocabulary may hold a control token's text as a word of its own: that is then spelled out."""
        if self._control.keys().isdisjoint(ids):
            return ids
        spelled: list[int] = []
        for index in ids:
            if index in self._control:
                letters = self._inner.encode_batch_fast(list(self._control[index]), add_special_tokens=False)
                spelled += (letter for encoding in letters for letter in encoding.ids)
            else:
                spelled.append(index)
        return spelled


def _without_control(tokenizer: Tokenizer, where: str) -> Tokenizer:
    """The same tokenizer, sharing its vocabulary, that knows no control tokens."""
    ordinary = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        ordinary.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        ordinary.pre_tokenizer = tokenizer.pre_tokenizer
    for index, token in sorted(tokenizer.get_added_tokens_decoder().items()):
        if not is_control(token):
            ordinary.add_tokens([token])
            if ordinary.token_to_id(token.content) != index:
                raise ModelError(f"{where}: the added token {token.content!r} is not in the vocabulary proper")
    return ordinary


def _after_start(ordinary: Tokenizer) -> Tokenizer:
    """For texts that follow a control token: a tokenizer that puts a space in front of the first word only must not
    put one there."""
    spaces = ordinary.pre_tokenizer
    if not isinstance(spaces, Metaspace) or spaces.prepend_scheme != "first":
        return ordinary
    inner = Tokenizer(ordinary.model)
    if ordinary.normalizer is not None:
        inner.normalizer = ordinary.normalizer
    inner.pre_tokenizer = Metaspace(replacement=spaces.replacement, prepend_scheme="never", split=spaces.split)
    return inner
