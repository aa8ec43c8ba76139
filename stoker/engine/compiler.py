"""Where matchers come from: grammars compiled once, on a thread of their own, and kept while they are in use.

The tokenizer is loaded with the first grammar, so an engine that never sees one never pays for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from queue import Empty, SimpleQueue

from llguidance import LLMatcher

from stoker.engine.grammar import Constraint
from stoker.models.source import ModelError
from stoker.models.text.guidance import GrammarError, Guide
from stoker.models.text.model import TextModel
from stoker.types.plan import SequenceStart

KEPT = 64  # grammars; one of the demo model's takes about 5 MB once it has been walked


class Grammars:
    """The grammars of one model. Thread-safe. `load` reads the model's text side; its ModelError is kept."""

    def __init__(self, load: Callable[[], TextModel]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._guide: Guide | GrammarError | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    @property
    def guide(self) -> Guide:
        """Raises GrammarError if the model's tokenizer cannot be used."""
        with self._lock:
            if self._guide is None:
                try:
                    self._guide = Guide(self._load())
                except (ModelError, GrammarError) as error:
                    self._guide = GrammarError(str(error))
            if isinstance(self._guide, GrammarError):
                raise self._guide
            return self._guide

    def compile(self, grammar: str) -> LLMatcher:
        """A matcher at the beginning of `grammar`, not to be changed. At once if it is known. Raises GrammarError."""
        guide = self.guide
        with self._lock:
            if grammar in self._compiled:
                self._compiled.move_to_end(grammar)
                return self._compiled[grammar]
        matcher = guide.compile(grammar)
        with self._lock:
            self._compiled[grammar] = matcher
            while len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        return matcher

    def constraint(self, start: SequenceStart) -> Constraint | None:
        """What holds for a sequence, None if nothing does. Compiles now what is not known any more, which is the same
        again; a grammar that does not compile is the constraint's error."""
        if start.grammar is None and start.reasoning is None:
            return None
        output = start.token_ids[start.prompt_len :]
        try:
            matcher = None if start.grammar is None else self.compile(start.grammar)
        except GrammarError as error:
            failed = Constraint(self.guide, None, None)
            failed.error = str(error)
            return failed
        return Constraint(self.guide, matcher, start.reasoning, output)


class Compiler:
    """Compiles one grammar after the other beside the engine's loop, which asks now and then what is `done`."""

    def __init__(self, grammars: Grammars) -> None:
        self._grammars = grammars
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._results: SimpleQueue[tuple[str, str | None]] = SimpleQueue()
        self.pending = 0

    def submit(self, request: str, grammar: str | None) -> None:
        """Get all ready that `request` needs; None is a request that has no grammar but counts its reasoning."""
        self.pending += 1
        self._thread.submit(self._run, request, grammar)

    def done(self) -> list[tuple[str, str | None]]:
        """The requests whose grammars are ready now, with what is wrong, if anything is. Never blocks."""
        found: list[tuple[str, str | None]] = []
        while self.pending:
            try:
                found.append(self._results.get_nowait())
            except Empty:
                break
            self.pending -= 1
        return found

    def _run(self, request: str, grammar: str | None) -> None:
        error: str | None = None
        try:
            if grammar is None:
                _ = self._grammars.guide
            else:
                self._grammars.compile(grammar)
        except GrammarError as problem:
            error = str(problem)
        except BaseException as problem:  # the extension's panics among them: one request fails, not the thread
            error = f"{type(problem).__name__}: {problem}"
        self._results.put((request, error))
