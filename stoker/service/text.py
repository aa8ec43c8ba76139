"""What the service needs of a model's text side. `models.text.TextModel` is the real one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stoker.types.chat import ChatRequest


class Detokenizer(Protocol):
    """Ids of one output in, text out; the concatenation is byte-exact wherever characters lie over token borders."""

    def push(self, ids: Sequence[int], /) -> str: ...

    def finish(self) -> str: ...


class Text(Protocol):
    """Rendering and tokenizing. Called from worker threads, several at a time."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> frozenset[int]: ...

    def render(self, request: ChatRequest) -> list[int]: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int], /) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def detokenizer(self, *, skip_special: bool = True) -> Detokenizer: ...
