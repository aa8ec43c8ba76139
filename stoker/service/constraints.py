"""From what a request asks of its answer's form to what the engine gets: one grammar that was tried out, and how the
answer may begin with reasoning. Owns no grammar text and no process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from stoker.models.text.grammar import grammars
from stoker.models.text.guidance import control_marks
from stoker.models.text.model import TextModel
from stoker.models.text.parse.format import Format, StartState, format_of
from stoker.models.text.parse.table import Mark
from stoker.service.grammar_trial import GrammarTrial
from stoker.types.chat import ChatRequest
from stoker.types.errors import invalid
from stoker.types.wire import Reasoning


class Constraint(msgspec.Struct, frozen=True):
    """What `Generate` carries of it."""

    grammar: str | None = None
    reasoning: Reasoning | None = None


FREE = Constraint()


class Constraints:
    """For one model. Without a `trial` no grammar can be used: requests that insist on one are refused, tool calls of
    the others are not constrained."""

    def __init__(self, text: TextModel, trial: GrammarTrial | None) -> None:
        self._text = text
        self._trial = trial

    def draft(self, request: ChatRequest, prompt: Sequence[int]) -> tuple[tuple[str, ...], Reasoning | None]:
        """The grammars that would do, the best first, and the reasoning before them. Takes time in the size of all
        schemas. Raises StokerError (INVALID)."""
        insisted = request.response_format is not None or request.tool_choice.mode == "required"
        if self._trial is None and insisted:
            param = "response_format" if request.response_format is not None else "tool_choice"
            raise invalid("unsupported_parameter", f"'{param}' is not supported here.", param=param)
        shaped = self._trial is not None and (insisted or bool(request.tools))
        if not shaped and request.reasoning_budget is None:
            return (), None
        format = format_of(self._text.family)
        found = grammars(request, format.name, self._control) if shaped else ()
        if not found and request.reasoning_budget is None:
            return (), None
        return found, self._reasoning(request, format, self._text.prompt_state(prompt))

    async def settle(self, draft: tuple[tuple[str, ...], Reasoning | None]) -> Constraint:
        """Try the grammars out. Raises StokerError: INVALID if none can be used, CAPACITY."""
        found, reasoning = draft
        grammar = await self._trial.check(found) if found and self._trial is not None else None
        return Constraint(grammar, reasoning) if grammar is not None or reasoning is not None else FREE

    def _reasoning(self, request: ChatRequest, format: Format, start: StartState) -> Reasoning | None:
        end = next((text for text, mark in format.marks.items() if mark is Mark.THINK_END), None)
        if end is None or start is StartState.CONTENT:
            return None
        return Reasoning(
            format=format.name,
            start=start.value,
            calls=bool(request.tools) and request.tool_choice.mode != "none",
            budget=request.reasoning_budget,
            end=() if request.reasoning_budget is None else self._ids(end),
        )

    @cached_property
    def _control(self) -> Mapping[str, int]:
        return control_marks(self._text)

    def _ids(self, mark: str) -> tuple[int, ...]:
        """A mark as the model would write it."""
        if mark in self._control:
            return (self._control[mark],)
        before = next(iter(self._control.values()))
        return tuple(self._text.vocabulary.encode_parts([before, mark])[1:])
