"""Kimi's tokenizer: ranked byte sequences in `tiktoken.model`, named control tokens in `tokenizer_config.json`.

Nothing is ever downloaded: the ranks come from the file, the pattern that cuts text into words from here. Both, and
the cuts of very long texts, are the maker's rules as the model was trained with them.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import tiktoken
from tokenizers import AddedToken

from stoker.models.source import ModelError, read_json
from stoker.models.text.detokenizer import ByteLevelDetokenizer, Detokenizer
from stoker.models.text.memo import Known, nothing_known

RANKS, CONFIG = "tiktoken.model", "tokenizer_config.json"
_RESERVED = 256  # ids after the ranks; those without a name in the configuration are called after their number
_WINDOW = 400_000  # characters
_LONGEST_RUN = 25_000
_LONG_RUN = re.compile(rf"\s{{{_LONGEST_RUN + 1},}}|\S{{{_LONGEST_RUN + 1},}}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_WORDS = "|".join(
    (
        r"\p{Han}+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_CONTRACTION}",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_CONTRACTION}",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


class TiktokenVocabulary:
    """See `Vocabulary` for the contract."""

    def __init__(self, root: Path) -> None:
        """Raises ModelError when the files in `root` are not what they should be."""
        ranks = _read_ranks(root / RANKS)
        self.size = len(ranks) + _RESERVED
        self.added: Mapping[int, AddedToken] = _named(root / CONFIG, len(ranks))
        self.special = frozenset(index for index, token in self.added.items() if token.special)
        names = {token.content: index for index, token in self.added.items()}
        try:
            self._encoding = tiktoken.Encoding(
                root.name, pat_str=_WORDS, mergeable_ranks=ranks, special_tokens=names, explicit_n_vocab=self.size
            )
        except (ValueError, AssertionError) as error:
            raise ModelError(f"{root / RANKS} cannot be used: {error}") from error

    def encode(self, text: str) -> list[int]:
        cuts = [0, *_cuts(text), len(text)]
        pieces = (text[start:end] for start, end in pairwise(cuts))
        return [index for piece in pieces for index in self._encoding.encode(piece, allowed_special="all")]

    def encode_parts(self, parts: Sequence[str | int], known: Known = nothing_known) -> list[int]:
        pieces: list[str | int] = []
        cuts = _cuts("".join(part if isinstance(part, str) else self.added[part].content for part in parts))
        at = 0  # in characters of the whole
        for part in parts:
            if isinstance(part, int):
                pieces.append(part)
                at += len(self.added[part].content)
                continue
            inside = [cut - at for cut in cuts if at < cut < at + len(part)] if cuts else []
            pieces += (part[start:end] for start, end in pairwise([0, *inside, len(part)]))
            at += len(part)
        encoded = iter(known([piece for piece in pieces if isinstance(piece, str)], self._encode))
        ids: list[int] = []
        for piece in pieces:
            ids += (piece,) if isinstance(piece, int) else next(encoded)
        return ids

    def _encode(self, texts: list[str]) -> list[list[int]]:
        return [self._encoding.encode_ordinary(text) for text in texts]

    def token_bytes(self, token_id: int) -> bytes:
        return self._encoding.decode_single_token_bytes(token_id) if 0 <= token_id < self.size else b""

    def detokenizer(self, *, skip_special: bool) -> Detokenizer:
        return ByteLevelDetokenizer(self.token_bytes, self.special if skip_special else frozenset())


def _cuts(text: str) -> list[int]:
    """Where the maker's tokenizer cuts a text before it looks for words: a control token that a cut would go through
    stays whole here, which the maker's own does not grant."""
    cuts: list[int] = []
    for start in range(0, len(text), _WINDOW):
        if start:
            cuts.append(start)
        for run in _LONG_RUN.finditer(text, start, start + _WINDOW):
            cuts += range(run.start() + _LONGEST_RUN, run.end(), _LONGEST_RUN)
    return cuts


def _read_ranks(path: Path) -> dict[bytes, int]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror}") from error
    try:
        ranks = {base64.b64decode(piece, validate=True): int(rank) for piece, rank in map(bytes.split, lines) if piece}
    except (ValueError, binascii.Error) as error:
        raise ModelError(
            f"{path} is not a file of ranks: each line must have a piece in base64 and a number"
        ) from error
    if len(ranks) < 256 or sorted(ranks.values()) != list(range(len(ranks))):
        raise ModelError(f"{path} must number its pieces 0, 1, 2, ... without a gap")
    return ranks


def _named(path: Path, first: int) -> dict[int, AddedToken]:
    """The reserved ids with the names and flags that the configuration gives some of them."""
    added = {
        index: AddedToken(f"<|reserved_token_{index}|>", special=True, normalized=False)
        for index in range(first, first + _RESERVED)
    }
    named = read_json(path).get("added_tokens_decoder")
    for key, value in (named if isinstance(named, dict) else {}).items():
        match value:
            case {"content": str(text)} if key.isdecimal() and int(key) in added and text:
                added[int(key)] = AddedToken(text, special=bool(value.get("special")), normalized=False)
            case _:
                raise ModelError(f"{path} names the token {key}, which is none of the {_RESERVED} after the ranks")
    return added
