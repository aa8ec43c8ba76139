"""Prompts as paths of segments: runs of blocks that every prompt of a trace either walks whole or not at all.

Exact, and a cache operation costs the 2 to 30 segments of a prompt instead of its thousands of blocks.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field

Path = tuple[int, ...]


@dataclass(slots=True)
class Segments:
    """`tokens[s]` of segment `s`; `first[s]` is the key of its first block, as the trace names it."""

    tokens: list[int] = field(default_factory=list[int])
    first: list[Hashable] = field(default_factory=list[Hashable])


def segment(prompts: Iterable[Sequence[tuple[Hashable, int]]]) -> tuple[list[Path], Segments]:
    """`prompts` as (key, tokens) for each block. A block's key names it together with all before it."""
    number: dict[tuple[int, Hashable], int] = {}
    keys: list[Hashable] = [None]
    sizes, parents, children = [0], [0], [0]
    ends: list[int] = []
    for prompt in prompts:
        node = 0
        for key, tokens in prompt:
            child = number.get((node, key))
            if child is None:
                child = number[node, key] = len(keys)
                keys.append(key)
                sizes.append(tokens)
                parents.append(node)
                children.append(0)
                children[node] += 1
            node = child
        ends.append(node)
    borders = {0, *ends, *(node for node, count in enumerate(children) if count > 1)}
    found = Segments()
    owner = [-1] * len(keys)  # segment of each block; parents come before their children
    paths: list[Path] = [()] * len(keys)  # up to the end of the segment, set at borders only
    begin: list[int] = []  # the border before each segment
    for node in range(1, len(keys)):
        parent = parents[node]
        if parent in borders:
            owner[node] = len(found.tokens)
            found.tokens.append(sizes[node])
            found.first.append(keys[node])
            begin.append(parent)
        else:
            owner[node] = owner[parent]
            found.tokens[owner[node]] += sizes[node]
        if node in borders:
            paths[node] = (*paths[begin[owner[node]]], owner[node])
    return [paths[end] for end in ends], found
