"""Public traces as workloads: single requests as they came (chat), or sessions of calls one after another (agents).

The folder of traces has `mooncake/*.jsonl` (one request a line, `hash_ids` of 512-token blocks) and `agent/*.json` (one
session a file, `hash_ids` of 64-token blocks). Equal ids mean an equal prefix up to the end of that block.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any

import msgspec

from bench.routing.segments import Path, segment

COMMON_USES = 100  # a mooncake block used by so many requests is a prompt head that all users share
MOONCAKE_BLOCK, AGENT_BLOCK = 512, 64
SHIFT_SECONDS = 120.0
THINK_SECONDS = 300.0  # longest pause between an agent's calls
STEP_SECONDS = 0.040  # of an output token, for the natural pace of a session


@dataclass(slots=True)
class Call:
    """One prompt. `think` seconds pass before it, where it is a session's."""

    path: Path
    tokens: int
    output: int
    think: float = 0.0


@dataclass(slots=True)
class Fork:
    """A sub-agent with calls of its own. Neighbours run at the same time, and the session goes on after the last."""

    calls: list[Item]


Item = Call | Fork


@dataclass(slots=True)
class Arrivals:
    """An open loop: (seconds, session, call) in order of time; `tokens[s]` of each segment."""

    name: str
    calls: list[tuple[float, str, Call]]
    tokens: list[int]

    @property
    def unique(self) -> int:
        """Tokens that one endless cache would hold in the end."""
        return sum(self.tokens[s] for s in {s for _, _, call in self.calls for s in call.path})


def mooncake(file: File, name: str, copies: int, window: float, seed: int) -> Arrivals:
    """`copies` independent users' copies of the first `window` seconds, shifted in time; common heads stay common."""
    rows: list[dict[str, Any]] = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    rows = [row for row in rows if row["timestamp"] < window * 1000]
    uses = Counter(block for row in rows for block in row["hash_ids"])
    prompts: list[list[tuple[Hashable, int]]] = []
    for row in rows:
        ids, last = row["hash_ids"], row["input_length"] - MOONCAKE_BLOCK * (len(row["hash_ids"]) - 1)
        prompts.append([(block, MOONCAKE_BLOCK) for block in ids[:-1]] + [(ids[-1], last)])
    paths, segments = segment(prompts)
    common = [uses[first] >= COMMON_USES for first in segments.first]
    sessions = _guess_sessions([row["hash_ids"] for row in rows], uses)
    shifts = random.Random(seed)
    calls: list[tuple[float, str, Call]] = []
    for copy in range(copies):
        shift = shifts.uniform(0, SHIFT_SECONDS) if copy else 0.0
        offset = copy * len(segments.tokens)
        for row, path, session in zip(rows, paths, sessions, strict=True):
            own = tuple(s if common[s] else s + offset for s in path)
            call = Call(own, row["input_length"], row["output_length"])
            calls.append((row["timestamp"] / 1000 + shift, f"{copy}.{session}", call))
    calls.sort(key=lambda call: call[0])
    return Arrivals(name, calls, segments.tokens * copies)


def _guess_sessions(prompts: Sequence[Sequence[int]], uses: Counter[int]) -> list[int]:
    """A request goes on with the session whose last full block is the deepest that it contains."""
    owner: dict[int, int] = {}
    found: list[int] = []
    for number, ids in enumerate(prompts):
        known = (owner[block] for block in reversed(ids) if uses[block] < COMMON_USES and block in owner)
        session = next(known, number)
        found.append(session)
        if len(ids) > 1 and uses[ids[-2]] < COMMON_USES:
            owner[ids[-2]] = session
    return found


@dataclass(slots=True)
class Agents:
    """A closed loop. Session `k` is a fresh copy of a trace drawn by (`seed`, k), with content and segments of its
    own; tool and system prompts are common to all sessions where their lengths are equal."""

    name: str
    plans: list[list[Item]]
    tokens: list[int]
    common: list[bool]
    seed: int
    pace: list[list[float]] = field(init=False)  # seconds of each item, on an idle fleet
    lives: list[float] = field(init=False)  # seconds of each session
    life: float = field(init=False)  # their mean
    turns: float = field(init=False)  # mean number of calls that the main line of a session makes

    def __post_init__(self) -> None:
        self.pace = [[_duration(item) for item in plan] for plan in self.plans]
        self.lives = [sum(pace) for pace in self.pace]
        self.life = sum(self.lives) / len(self.lives)
        self.turns = sum(isinstance(item, Call) for plan in self.plans for item in plan) / len(self.plans)

    def session(self, number: int, tokens: list[int], resumed: bool) -> tuple[list[Item], int]:
        """Items and the position to start at. Lengths of its new segments are added to `tokens`."""
        draw = random.Random((self.seed << 32) | number)
        position = 0
        if resumed:  # met half-way: a longer one is met more often
            plan = draw.choices(range(len(self.plans)), self.lives)[0]
            at = draw.random() * self.lives[plan]
            for seconds in self.pace[plan]:
                if at < seconds:
                    break
                at -= seconds
                position += 1
            position = min(position, len(self.plans[plan]) - 1)
        else:
            plan = draw.randrange(len(self.plans))
        own: dict[int, int] = {}
        return [self._copy(item, own, tokens) for item in self.plans[plan]], position

    def _copy(self, item: Item, own: dict[int, int], tokens: list[int]) -> Item:
        if isinstance(item, Fork):
            return Fork([self._copy(call, own, tokens) for call in item.calls])
        path: list[int] = []
        for old in item.path:
            new = own.get(old)
            if new is None:
                new = old
                if not self.common[old]:
                    new = len(tokens)
                    tokens.append(self.tokens[old])
                own[old] = new
            path.append(new)
        return Call(tuple(path), item.tokens, item.output, item.think)


def _duration(item: Item) -> float:
    if isinstance(item, Call):
        return 1.0 + item.think + item.output * STEP_SECONDS
    return 1.0 + sum(_duration(call) for call in item.calls if isinstance(call, Call))


def agents(folder: File, seed: int) -> Agents:
    prompts: list[list[tuple[Hashable, int]]] = []
    plans: list[list[Item]] = []
    for number, file in enumerate(sorted(folder.glob("*.json"))):
        trace = msgspec.json.decode(file.read_bytes())
        plans.append(_items(trace, number, prompts))
    paths, segments = segment(prompts)
    calls = iter(paths)
    for plan in plans:
        for item in plan:
            _set_paths(item, calls)
    common = [isinstance(first, tuple) and bool(first[0]) for first in segments.first]
    return Agents("agent", plans, segments.tokens, common, seed)


def _items(trace: dict[str, Any], number: int, prompts: list[list[tuple[Hashable, int]]]) -> list[Item]:
    """The calls of a session or sub-agent in order; each leaves its blocks in `prompts`."""
    tools, system = trace["tool_tokens"], trace["system_tokens"]
    head = next((call["hash_ids"] for call in trace["requests"] if call["type"] != "subagent"), [])
    found: list[Item] = []
    for call in trace["requests"]:
        if call["type"] == "subagent":
            calls = _items(call, number, prompts)
            if calls:
                found.append(Fork(calls))
            continue
        blocks: list[tuple[Hashable, int]] = []
        for at, block in enumerate(call["hash_ids"]):
            key: Hashable = (0, number, block)
            if at < (tools + system) // AGENT_BLOCK and at < len(head) and block == head[at]:
                key = (1, tools, at) if at < tools // AGENT_BLOCK else (1, tools, system, at)
            blocks.append((key, AGENT_BLOCK))
        prompts.append(blocks)
        think = min(call.get("think_time") or 0.0, THINK_SECONDS)
        found.append(Call((), call["in"], call["out"], think))
    return found


def _set_paths(item: Item, paths: Iterator[Path]) -> None:
    if isinstance(item, Call):
        item.path = next(paths)
        return
    for call in item.calls:
        _set_paths(call, paths)
