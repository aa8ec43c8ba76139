"""What a sequence may generate next: reasoning first, then its grammar; as a bit per token, before the sampler chooses.

Owns one matcher per sequence and what it costs. Does not own what a grammar says, when reasoning is over (the output
parser's automaton says it), where matchers come from (`compiler.py`) or how a mask is applied (`sampler.py`).

All follows from the ids of the output, so a sequence that was preempted goes on as if nothing had happened, and so does
a replayed log of plans. Only accepted ids move a constraint; what was accepted in vain is rolled back.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np
from llguidance import LLMatcher

from stoker.models.text.guidance import Guide, first_line
from stoker.models.text.parse.format import FORMATS, Format, Piece, StartState
from stoker.models.text.parse.gate import ReasoningGate
from stoker.models.text.parse.pieces import control_pieces, spelled_marks
from stoker.models.text.parse.table import Mark
from stoker.types.wire import Reasoning

SLOW_STEP = 0.02  # seconds of the processor for the mask of a step, all in all; a sane grammar takes a hundredth of it
SLOW_START = 1.0  # and so many seconds on top

Words = np.ndarray[tuple[int], np.dtype[np.int32]]


class Constraint:
    """One sequence. Made with the ids it has generated so far; `accept` what comes after them.

    error  why nothing can be generated any more: the request has failed, no other is affected
    """

    def __init__(
        self, guide: Guide, grammar: LLMatcher | None, reasoning: Reasoning | None, output: Sequence[int] = ()
    ) -> None:
        """`grammar` is a matcher at its beginning and is not changed; None if anything may follow reasoning."""
        self.error: str | None = None
        self.guide = guide
        self._grammar = grammar
        self._reasoning = reasoning
        self._marks = None if reasoning is None else _Marks(guide, FORMATS[reasoning.format])
        self._forbidden: list[int] | None = None
        self._spent = 0.0
        self._masks = 0
        self._begin()
        self.accept(output)

    def accept(self, ids: Iterable[int]) -> None:
        """The sequence has grown by generated `ids`."""
        for index in ids:
            self._ids.append(index)
            if self._gate is not None and self._marks is not None and not self._gate.over:
                self._think(self._gate, self._marks, index)
            else:
                self._consume(index)

    def rollback(self, count: int) -> None:
        """The last `count` ids were not accepted after all."""
        kept = self._ids[: len(self._ids) - count]
        if (
            self.error is None
            and self._matcher is not None
            and count <= self._matched
            and self._matcher.rollback(count)
        ):
            self._matched -= count
            self._ids = kept
        else:  # back into reasoning, or out of an error
            self.error = None
            self._begin()
            self.accept(kept)

    def fill(self, words: Words) -> bool:
        """Write which tokens may come next into `words` [guide.words]. False, and nothing written, if all may. Sets
        `error` if none can."""
        gate = self._gate
        if gate is not None and gate.thinking:
            return self._fill_thinking(words)
        if self._matcher is None:
            return False
        began = time.thread_time()
        if self._matcher.is_stopped() and not self._matcher.is_error():
            words.fill(0)
            _allow(words, self.guide.tokenizer.eos_tokens)  # complete: whatever else was asked for, it ends here
        else:
            self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._spent += time.thread_time() - began
        self._masks += 1
        if self._matcher.is_error():
            self._fail()
        elif self._spent > SLOW_START + SLOW_STEP * self._masks:
            self.error = "the grammar takes too long"
        if gate is not None and not gate.over and self._marks is not None:
            _allow(words, self._marks.think)
        return True

    def _begin(self) -> None:
        reasoning, marks = self._reasoning, self._marks
        self._ids: list[int] = []
        self._thought = 0  # tokens of reasoning
        self._matched = 0  # ids at the end that the matcher consumed as they are
        self._matcher = None if self._grammar is None else self._grammar.deep_copy()
        self._gate = None
        if reasoning is not None and marks is not None and reasoning.start != StartState.CONTENT:
            self._detokenizer = self.guide.text.detokenizer(skip_special=False)
            self._gate = ReasoningGate(
                marks.format,
                StartState(reasoning.start),
                calls=reasoning.calls,
                control_known=True,
                spelled=marks.spelled,
            )

    def _think(self, gate: ReasoningGate, marks: _Marks, index: int) -> None:
        """One more token while reasoning is not over, or has not begun."""
        thinking = gate.thinking
        piece = self._piece(marks, index)
        gate.feed(piece)
        if thinking:
            self._thought += 1
            if gate.over:
                self._follow([index] if piece == (gate.rest, True) else self.guide.encode(gate.rest))
        elif gate.thinking:  # what came before was white space
            self._matcher = None if self._grammar is None else self._grammar.deep_copy()
            self._matched = 0
        else:
            self._consume(index)

    def _follow(self, ids: Sequence[int]) -> None:
        """What the token that ended reasoning has of the answer. White space that the grammar has no place for is the
        model's habit, not part of it."""
        if self._matcher is None or self._matcher.try_consume_tokens(list(ids)) == len(ids):
            return
        if not self.guide.tokenizer.decode_bytes(list(ids)).isspace():
            self.error = "the answer began in the middle of a token with what the grammar does not allow"
        self._matcher = self._grammar.deep_copy() if self._grammar is not None else None

    def _consume(self, index: int) -> None:
        matcher = self._matcher
        if matcher is None or self.error is not None or (matcher.is_stopped() and not matcher.is_error()):
            return
        if matcher.consume_token(index):
            self._matched += 1
        else:
            self._fail()

    def _fill_thinking(self, words: Words) -> bool:
        reasoning = self._reasoning
        assert reasoning is not None
        if reasoning.budget is not None and 0 <= (due := self._thought - reasoning.budget) < len(reasoning.end):
            words.fill(0)
            _allow(words, reasoning.end[due : due + 1])
            return True
        if self._grammar is None:
            return False
        if self._forbidden is None:
            self._forbidden = self._never_in_reasoning(self._grammar)
        words.fill(-1)
        bits = words.view(np.uint32)
        for index in self._forbidden:
            bits[index >> 5] &= ~np.uint32(1 << (index & 31))
        return True

    def _never_in_reasoning(self, grammar: LLMatcher) -> list[int]:
        """Ids that end reasoning with what the grammar cannot begin with: the end of the output, or a call."""
        first = np.frombuffer(grammar.deep_copy().compute_bitmask(), np.uint8)
        ending = {*self.guide.tokenizer.eos_tokens, *(self._marks.calls if self._marks is not None else ())}
        return [index for index in sorted(ending) if not first[index >> 3] >> (index & 7) & 1]

    def _piece(self, marks: _Marks, index: int) -> Piece:
        name = marks.control.get(index)
        return (self._detokenizer.push([index]), False) if name is None else (name, True)

    def _fail(self) -> None:
        assert self._matcher is not None
        self.error = f"the grammar cannot go on: {first_line(self._matcher.get_error())}"


class _Marks:
    """The marks of a format that matter here, by the ids they have in a vocabulary. `spelled` have none."""

    def __init__(self, guide: Guide, format: Format) -> None:
        ids = {text: guide.control[text] for text in format.marks if text in guide.control}
        self.format = format
        self.control = control_pieces(guide.text.vocabulary, format)
        self.spelled = spelled_marks(guide.text.vocabulary, format)
        self.think = [index for text, index in ids.items() if format.marks[text] is Mark.THINK]
        self.calls = [index for text, index in ids.items() if format.marks[text] in (Mark.CALL, Mark.SECTION)]


def _allow(words: Words, ids: Iterable[int]) -> None:
    bits = words.view(np.uint32)
    for index in ids:
        bits[index >> 5] |= np.uint32(1 << (index & 31))
