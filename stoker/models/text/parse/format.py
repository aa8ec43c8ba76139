"""What the parser must know of an output format before it reads the first token."""

from __future__ import annotations

from enum import StrEnum


class StartState(StrEnum):
    """What the prompt's tail left open."""

    REASONING = "reasoning"  # inside <think>
    CONTENT = "content"  # thinking is closed, or the model does not think
    NONE = "none"  # the model decides: it writes <think> itself if it thinks
