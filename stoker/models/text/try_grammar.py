"""A process that tries out grammars of clients: `python -m stoker.models.text.try_grammar`. It may be killed at any
time; nothing else depends on it.

Standard input: one line of JSON with the model's files; then a line per trial, a JSON array of grammars in order of
preference. Standard output: a line when ready and a line per trial, the number of the first grammar that can be used or
the reason why none can.
"""

from __future__ import annotations

import resource
import signal
import sys

import msgspec

from stoker.models.source import ModelFiles
from stoker.models.text.guidance import GrammarError, Guide
from stoker.models.text.model import TextModel

MEMORY = 4 << 30  # address space
SECONDS = 20  # a trial after which the process ends by itself, should nobody be left to end it


def main() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    guide = Guide(TextModel.load(msgspec.json.decode(sys.stdin.buffer.readline(), type=ModelFiles)))
    _answer("ready")
    for line in sys.stdin.buffer:
        signal.alarm(SECONDS)
        _answer(_first_good(guide, msgspec.json.decode(line, type=list[str])))
        signal.alarm(0)


def _first_good(guide: Guide, grammars: list[str]) -> int | str:
    error = ""
    for number, grammar in enumerate(grammars):
        try:
            guide.trial(grammar)
        except GrammarError as problem:
            error = error or str(problem)
        else:
            return number
    return error


def _answer(result: int | str) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
