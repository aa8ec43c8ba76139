"""What all ranks do next, and what came of it. Rank 0 writes the plan; executors only obey.

The log of plans replays a run, so a plan carries everything a rank needs and nothing it could decide itself.
"""

from __future__ import annotations

import msgspec

from stoker.types.sampling import SamplingParams
from stoker.types.wire import Reasoning, SampledToken


class ImageAt(msgspec.Struct, frozen=True, array_like=True):
    """Tokens [start, start + tokens) of a sequence are those of image `number`."""

    number: int
    start: int
    tokens: int


class Encode(msgspec.Struct, frozen=True, array_like=True):
    """Make features of an image and keep them as `number`. `pixels` are uint8 [height, width, 3], row by row."""

    number: int
    height: int
    width: int
    pixels: bytes


class SequenceStart(msgspec.Struct, frozen=True, kw_only=True, tag="start"):
    """A sequence enters (or re-enters after preemption): all ids known so far, of which `prompt_len` are prompt.

    `grammar` and `reasoning` as in `wire.Generate`: what may be sampled follows from them and the ids after the prompt.
    """

    seq: int
    token_ids: list[int]
    prompt_len: int
    sampling: SamplingParams
    blocks: list[int]
    grammar: str | None = None
    reasoning: Reasoning | None = None
    images: list[ImageAt] = []


class Work(msgspec.Struct, frozen=True, kw_only=True):
    """Compute KV for tokens `[start, start + count)` of `seq`; with `sample`, also choose the token after them.

    `append` are ids accepted since the last plan (they become known before the work); `blocks` are physical blocks
    appended to the block table: token `t` lives in slot `table[t // block_size] * block_size + t % block_size`.

    Where a model keeps states: this work goes on from the one in slot `source` (None: from nothing, at token 0), and
    leaves what comes of it in slot `target`, which may be the same; no other work of the plan reads or writes `target`.
    """

    seq: int
    start: int
    count: int
    sample: bool
    append: list[int] = []
    blocks: list[int] = []
    source: int | None = None
    target: int | None = None


class StepPlan(msgspec.Struct, frozen=True, kw_only=True, tag="plan"):
    """One step. `finished` sequences and the images `forget` are forgotten first, then images are encoded and `starts`
    entered, then `work` runs as one batch."""

    step: int
    finished: list[int] = []
    forget: list[int] = []
    encode: list[Encode] = []
    starts: list[SequenceStart] = []
    work: list[Work] = []


class Sampled(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one sampling sequence. `error` is set instead of a token when none can be chosen."""

    seq: int
    tokens: list[SampledToken] = []
    error: str | None = None


class StepResult(msgspec.Struct, frozen=True, kw_only=True, tag="result"):
    """Answers the plan of the same `step`; `sampled` follows the order of the plan's sampling work."""

    step: int
    sampled: list[Sampled]
