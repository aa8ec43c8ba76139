"""How one model's outputs are read: its format and control tokens, looked up once, and a reader for each choice."""

from __future__ import annotations

from stoker.models.text.model import TextModel
from stoker.models.text.parse.engine import OutputParser
from stoker.models.text.parse.format import format_of
from stoker.models.text.parse.pieces import control_pieces, spelled_marks
from stoker.service.choice import Choice, PlainParser
from stoker.service.pieces import PieceReader
from stoker.types.chat import ChatRequest, CompletionRequest


class Reading:
    """Where the format has no marks, special tokens are left out and all else is text."""

    def __init__(self, text: TextModel) -> None:
        self._text = text
        self._format = format_of(text.family)
        self._control = control_pieces(text.vocabulary, self._format) if self._format.marks else {}
        self._spelled = spelled_marks(text.vocabulary, self._format)

    def choice(self, request: ChatRequest | CompletionRequest, index: int, prompt: list[int]) -> Choice:
        """The reader of choice `index`, which continues `prompt`. Raw completions are not taken apart."""
        chat = isinstance(request, ChatRequest)
        return Choice(
            index,
            PieceReader(self._text.detokenizer(), self._control if chat else {}),
            self._parser(request, index, prompt) if chat else PlainParser(index),
            self._text.token_bytes,
            request.stop,
            logprobs=request.sampling.logprobs is not None,
        )

    def _parser(self, request: ChatRequest, index: int, prompt: list[int]) -> OutputParser:
        return OutputParser(
            self._format,
            index=index,
            tools=request.tools,
            tool_choice=request.tool_choice.mode,
            start=self._text.prompt_state(prompt),
            history_tool_calls=sum(len(message.tool_calls) for message in request.messages),
            control_known=True,
            spelled=self._spelled,
        )
