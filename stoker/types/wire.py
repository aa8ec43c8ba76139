"""Messages between a client process (gateway, batch) and an engine process. msgpack over ZeroMQ, never pickle."""

from __future__ import annotations

from typing import Literal

import msgspec

from stoker.types.chat import FinishReason
from stoker.types.lane import Lane
from stoker.types.sampling import SamplingParams


class Reasoning(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How an answer may begin with reasoning, which no grammar holds for.

    format  output format whose automaton tells when reasoning is over
    start   what the prompt left open, a `StartState`
    calls   a call ends reasoning too: tools are declared
    budget  tokens of reasoning after which its end is forced; None is no limit
    end     ids of the mark that ends reasoning
    """

    format: str
    start: Literal["reasoning", "content", "none"]
    calls: bool = False
    budget: int | None = None
    end: tuple[int, ...] = ()


class ImageSpan(msgspec.Struct, frozen=True, array_like=True):
    """Where an image is in a prompt: `tokens` placeholders from `start` on, for `height` x `width` pixels in RGB.

    `digest` (16 bytes) is that of its file, its size and the version of what made pixels of it: two images of one
    digest are the same to the model.
    """

    start: int
    tokens: int
    height: int
    width: int
    digest: bytes


class Generate(msgspec.Struct, frozen=True, kw_only=True, tag="generate"):
    """Continue `prompt_ids`. `domain` says who may share the KV of this prompt; the gateway sets it, never a client.

    `grammar`, in llguidance's notation, is what all output after `reasoning` derives from: an end token can come only
    where it is complete. `links` are the chain links of the prompt's full pages, 16 bytes each, made with the engine's
    key, fingerprint and page size and this request's adapter and domain; where it is empty the engine makes them.
    `traceparent` is the place in a tree of traces that this request's part of it hangs below, as W3C writes it, or "".

    `output_ids` were generated before, by an engine that was lost: this one goes on behind them as if they were its
    own. They count as output everywhere (limits, penalties, seeds, grammar, reasoning), and are not sent again.

    `images` are those of the prompt, first to last. Their pixels are asked for when they are needed (`ImagesWanted`).
    """

    id: str
    prompt_ids: list[int]
    output_ids: list[int] = []
    sampling: SamplingParams
    grammar: str | None = None
    reasoning: Reasoning | None = None
    lane: Lane = Lane.STANDARD
    domain: str = ""
    adapter: str = ""
    links: bytes = b""
    images: list[ImageSpan] = []
    traceparent: str = ""


class Abort(msgspec.Struct, frozen=True, kw_only=True, tag="abort"):
    """Stop and free at the next step. Harmless for an id that is unknown or already finished."""

    id: str


class ImagePixels(msgspec.Struct, frozen=True, kw_only=True, tag="pixels"):
    """Answers `ImagesWanted`: uint8 [height, width, 3], row by row; empty if the client does not have the image."""

    digest: bytes
    pixels: bytes


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello"):
    """A client introduces itself and, sent again each second, shows that it lives. Answered by `Ready` or `Loading`."""


class Subscribe(msgspec.Struct, frozen=True, kw_only=True, tag="subscribe"):
    """Send this client what is in the prefix cache: a `KVSnapshot` now, then `KVEvents`. Said again, all of it comes
    anew: whoever missed something asks once more."""


class Shutdown(msgspec.Struct, frozen=True, kw_only=True, tag="shutdown"):
    """End the process now; sequences still running end with reason `abort`."""


ToEngine = Generate | ImagePixels | Abort | Hello | Subscribe | Shutdown


class SampledToken(msgspec.Struct, frozen=True, array_like=True):
    """One token; `logprob` and `top` (id, logprob) are filled only where logprobs were asked for."""

    id: int
    logprob: float | None = None
    top: list[tuple[int, float]] = []


class Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="progress"):
    """New tokens of one request, in order. The last one carries `finish`.

    `cached` is the number of tokens, of the prompt and of the `output_ids` that came with it, that were served from
    the prefix cache, fixed when the request was first scheduled. `tokens` never contains the stop id that ended the
    output. `output` is the running number of tokens generated (a stop id that ended the output counts: it was
    computed), `output_ids` included.

    Told once, with the first token: `waited`, how many steps the engine has made since the request came, the one that
    made this token included; `queued`, seconds from then until its prefill began; `prefill`, seconds from there to this
    token.
    """

    id: str
    tokens: list[SampledToken] = []
    cached: int = 0
    output: int = 0
    waited: int = 0
    queued: float = 0.0
    prefill: float = 0.0
    finish: FinishReason | None = None


class Refused(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="refused"):
    """The request ends here with an error: a `StokerError` on the wire (`kind` is an `ErrorKind` value)."""

    id: str
    kind: str
    code: str
    message: str
    retry_after: float | None = None


class Step(msgspec.Struct, frozen=True, kw_only=True, tag="step"):
    """All that one engine step has for one client."""

    progress: list[Progress]


class ImagesWanted(msgspec.Struct, frozen=True, kw_only=True, tag="wanted"):
    """A step is about to need the pixels of these images of the client's requests."""

    digests: list[bytes]


class Loading(msgspec.Struct, frozen=True, kw_only=True, tag="loading"):
    """Start-up progress: `fraction` 0..1 of `stage`."""

    stage: str
    fraction: float


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine serves. `context` is the longest prompt + output in tokens, `kv_tokens` the capacity of the pool."""

    context: int
    kv_tokens: int
    block_size: int
    dtype: str
    device: str
    load_seconds: float


class KVSnapshot(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="kv_snapshot"):
    """A part of what can be found in the prefix cache: names of logical blocks, 16 bytes each, in no order.

    seq    of the last `KVEvents` that are contained; the next to come have `seq + 1`. The same in all parts
    first  this part begins a snapshot: whatever was known of this engine before is void
    more   further parts follow, before any other KV message
    """

    seq: int
    blocks: bytes
    first: bool = False
    more: bool = False


class KVEvents(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="kv_events"):
    """What changed in the prefix cache since the events before. Names of logical blocks as in `KVSnapshot`; a block is
    in one of `stored` and `removed` at most, and is stored while all its pages can be found.

    seq      consecutive in an engine's life: a reader that misses one must subscribe again
    cleared  nothing of what was stored before is there any more
    """

    seq: int
    stored: bytes = b""
    removed: bytes = b""
    cleared: bool = False


class EngineStats(msgspec.Struct, frozen=True, kw_only=True, tag="stats"):
    """The heartbeat of the engine's own loop: if these stop, the loop stands still.

    Blocks: `free + cached + in_use` = all. `wasted_slots` are KV slots inside blocks in use that hold no token.
    Counters only grow. `step_seconds` is the last step's duration, `failed_checks` counts consistency checks of the
    pool that found a fault.

    waiting_by_lane  of `waiting`, indexed by `Lane`
    kv_tokens        capacity of the pool
    queued_tokens    prompt tokens that are still to be computed: of running requests, and of waiting ones what is not
                     in the cache now
    prefill_rate     tokens per second in prefill, over recent steps; 0 before the first
    decode_seconds   of a step that only decodes, over recent steps; 0 before the first
    predicted        seconds that the step which begins now will take; 0 if none begins. Sent before a long step, so
                     silence longer than that means that the engine hangs
    after_abort      tokens computed for a request in the step during which its abort came: an upper bound of what was
                     computed for nobody
    image_tokens     of images that went through the model's vision part; not of those found in a cache
    kv_seq           of the last `KVEvents`: a subscriber that has seen another number has missed some
    states_*         state slots, of models that keep states: counted like blocks, the cached ones are snapshots
    """

    steps: int
    running: int
    waiting: int
    blocks_free: int
    blocks_cached: int
    blocks_in_use: int
    wasted_slots: int
    step_seconds: float
    prefill_tokens: int
    decode_tokens: int
    cached_tokens: int
    preemptions: int
    recomputed_tokens: int
    evictions: int
    failed_checks: int = 0
    waiting_by_lane: tuple[int, int, int] = (0, 0, 0)
    kv_tokens: int = 0
    queued_tokens: int = 0
    prefill_rate: float = 0.0
    decode_seconds: float = 0.0
    predicted: float = 0.0
    after_abort: int = 0
    image_tokens: int = 0
    kv_seq: int = 0
    states_free: int = 0
    states_cached: int = 0
    states_in_use: int = 0


KVNews = KVSnapshot | KVEvents
FromEngine = Step | ImagesWanted | Refused | Loading | Ready | EngineStats | KVNews
