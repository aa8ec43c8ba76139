"""The workloads: sizes, prompts and the arithmetic on what was timed. No I/O, standard library only.

Standard library only because the peers' own environments import it too, and they carry none of our packages.

a  single stream: one request at a time, greedy; tokens a second after the first token
b  prefill: one long prompt, one token out; prompt tokens a second
c  concurrent: many requests at once; all tokens (in + out) over the wall time
d  agent: sessions that resend their whole history each turn; wall time and how much of it came from the cache
e  cold start: from starting the process to its first token
f  memory of the process tree: highest seen during the run, and after it
g  gateway overhead: what Stoker's text side adds around an engine that answers at once
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

WORKLOADS = "abcdefg"


@dataclass(frozen=True)
class Single:
    """Requests of `prompt` tokens making `output` tokens, one after the other, `repeats` times."""

    prompt: int
    output: int
    repeats: int


@dataclass(frozen=True)
class Concurrent:
    """`count` requests sent at the same moment, each with a prompt of its own."""

    count: int
    prompt: int
    output: int


@dataclass(frozen=True)
class Agent:
    """`sessions` in parallel, each of `turns` that wait for one another.

    The prompt of turn t is `prefix` tokens shared by all sessions, then for each turn so far `tool` new tokens, with
    `output` tokens of answer between them. The answers in the history are given, not what the server made: so every
    server is sent the same tokens, and what could come from a cache is known exactly.
    """

    sessions: int
    turns: int
    prefix: int
    tool: int
    output: int

    def prompt_tokens(self, turn: int) -> int:
        return self.prefix + self.tool + turn * (self.output + self.tool)

    @property
    def total_prompt_tokens(self) -> int:
        return self.sessions * sum(self.prompt_tokens(turn) for turn in range(self.turns))

    @property
    def ideal_cached_tokens(self) -> int:
        """Prompt tokens that were sent before: a session's whole previous prompt, and the shared prefix in all
        sessions but the one that brought it first."""
        again = self.sessions * sum(self.prompt_tokens(turn) for turn in range(self.turns - 1))
        return again + (self.sessions - 1) * self.prefix


@dataclass(frozen=True)
class Sizes:
    """How large each workload is in this run."""

    single: Single
    prefill: Single
    concurrent: Concurrent
    agent: Agent


FULL = Sizes(
    single=Single(prompt=512, output=256, repeats=2),
    prefill=Single(prompt=4096, output=1, repeats=2),
    concurrent=Concurrent(count=32, prompt=512, output=128),
    agent=Agent(sessions=8, turns=10, prefix=1000, tool=200, output=64),
)
QUICK = Sizes(
    single=Single(prompt=128, output=32, repeats=1),
    prefill=Single(prompt=1024, output=1, repeats=1),
    concurrent=Concurrent(count=8, prompt=128, output=16),
    agent=Agent(sessions=3, turns=3, prefix=256, tool=64, output=16),
)


def sizes_from(tree: dict[str, Any]) -> Sizes:
    """`dataclasses.asdict(sizes)` and back, for the way over a pipe."""
    return Sizes(
        single=Single(**tree["single"]),
        prefill=Single(**tree["prefill"]),
        concurrent=Concurrent(**tree["concurrent"]),
        agent=Agent(**tree["agent"]),
    )


@dataclass(frozen=True)
class Prompts:
    """Random token ids, the same for the same (seed, label), different for any other: no cache helps by accident.

    `low` and `high` bound the ids; the defaults stay clear of the demo model's special tokens (0 to 16).
    """

    seed: str
    low: int = 100
    high: int = 49_000

    def ids(self, label: str, count: int) -> list[int]:
        draw = random.Random(f"{self.seed}/{label}")
        return draw.choices(range(self.low, self.high), k=count)

    def many(self, label: str, count: int, length: int) -> list[list[int]]:
        return [self.ids(f"{label}/{index}", length) for index in range(count)]

    def agent(self, sizes: Agent) -> list[list[list[int]]]:
        """Prompts by [session][turn]."""
        prefix = self.ids("agent/prefix", sizes.prefix)
        sessions: list[list[list[int]]] = []
        for session in range(sizes.sessions):
            history = prefix + self.ids(f"agent/{session}/0", sizes.tool)
            turns = [history]
            for turn in range(1, sizes.turns):
                history = history + self.ids(f"agent/{session}/{turn}", sizes.output + sizes.tool)
                turns.append(history)
            sessions.append(turns)
        return sessions


@dataclass
class Timing:
    """One request as its client saw it. Clock readings in seconds; `cached` is None where the peer does not tell."""

    start: float
    first: float
    last: float
    prompt: int
    output: int
    cached: int | None = None


@dataclass
class Timings:
    """All requests of one workload, with its result as the metrics that reports know."""

    requests: list[Timing] = field(default_factory=list[Timing])

    def single(self) -> dict[str, float]:
        rates = [(one.output - 1) / (one.last - one.first) for one in self.requests]
        return {"decode_tok_s": mean(rates), "ttft_s": self._ttft()}

    def prefill(self) -> dict[str, float]:
        return {"prefill_tok_s": mean([one.prompt / (one.first - one.start) for one in self.requests])}

    def concurrent(self) -> dict[str, float]:
        made = sum(one.output for one in self.requests)
        read = sum(one.prompt for one in self.requests)
        wall = self._wall()
        result = {"total_tok_s": (made + read) / wall, "output_tok_s": made / wall}
        # A peer that hands out a batch only when all of it is done has no first token of its own to time.
        if any(one.first < one.last for one in self.requests):
            result["concurrent_ttft_s"] = self._ttft()
        return result

    def agent(self, sizes: Agent) -> dict[str, float]:
        result = {"agent_wall_s": self._wall(), "agent_ttft_s": self._ttft()}
        known = [one.cached for one in self.requests if one.cached is not None]
        if len(known) == len(self.requests):
            result["cached_share"] = sum(known) / sizes.total_prompt_tokens
            result["cached_of_ideal"] = sum(known) / sizes.ideal_cached_tokens
        return result

    def _wall(self) -> float:
        return max(one.last for one in self.requests) - min(one.start for one in self.requests)

    def _ttft(self) -> float:
        return mean([one.first - one.start for one in self.requests])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
