"""The worker's side of the pipe: questions in on stdin, answers out on the real stdout, one JSON object a line."""

from __future__ import annotations

import json
import os
import sys
from typing import Any, Protocol

from bench.workloads import Prompts, Sizes, Timings, sizes_from


class Engine(Protocol):
    """A loaded library peer. Everything greedy, end tokens ignored, exactly `output` tokens for each prompt."""

    def single(self, prompt: list[int], output: int) -> Timings: ...

    def concurrent(self, prompts: list[list[int]], output: int) -> Timings: ...

    def agent(self, sessions: list[list[list[int]]], output: int) -> Timings | None:
        """None when the library keeps no prefix from one call to the next."""
        ...


def serve(engine: Engine, answers: int) -> None:
    """Answer questions until stdin ends. `answers` is the file descriptor from `claim_stdout`."""
    with os.fdopen(answers, "w") as out:
        for line in sys.stdin:
            try:
                answer = {"result": _answer(engine, json.loads(line))}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            out.write(json.dumps(answer) + "\n")
            out.flush()


def claim_stdout() -> int:
    """Keep stdout for answers: whatever a library prints goes to stderr from here on."""
    answers = os.dup(1)
    os.dup2(2, 1)
    return answers


def _answer(engine: Engine, question: dict[str, Any]) -> dict[str, float] | None:
    if "prompt" in question:
        engine.single(question["prompt"], 1)
        return {}
    return measure(engine, question["workload"], sizes_from(question["sizes"]), Prompts(**question["prompts"]))


def measure(engine: Engine, workload: str, sizes: Sizes, prompts: Prompts) -> dict[str, float] | None:
    match workload:
        case "warm-up":
            engine.single(prompts.ids("warm-up/0", sizes.single.prompt), 8)
            return {}
        case "a":
            one = sizes.single
            return _one_by_one(engine, prompts.many("single", one.repeats, one.prompt), one.output).single()
        case "b":
            one = sizes.prefill
            return _one_by_one(engine, prompts.many("prefill", one.repeats, one.prompt), one.output).prefill()
        case "c":
            many = sizes.concurrent
            timings = engine.concurrent(prompts.many("concurrent", many.count, many.prompt), many.output)
            return timings.concurrent()
        case "d":
            timings = engine.agent(prompts.agent(sizes.agent), sizes.agent.output)
            return None if timings is None else timings.agent(sizes.agent)
        case _:
            raise ValueError(f"no workload {workload!r}")


def _one_by_one(engine: Engine, prompts: list[list[int]], output: int) -> Timings:
    timings = [engine.single(prompt, output) for prompt in prompts]
    return Timings([one for each in timings for one in each.requests])
