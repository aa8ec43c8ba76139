"""The canonical request and its events. Every dialect decodes to the one and encodes the other."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stoker.types.lane import Lane
from stoker.types.sampling import SamplingParams
from stoker.types.usage import Usage

Role = Literal["system", "developer", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "tool_calls", "abort", "error"]


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that an assistant made. `arguments` is the JSON text exactly as it was produced."""

    id: str
    name: str
    arguments: str


class Image(msgspec.Struct, frozen=True):
    """An image in a turn. `url` is where it is to be had (https), or holds it (data); `param` is its place in the
    request, for errors."""

    url: str
    param: str


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turn. `content` is plain text, or, where there are images, texts and images in their order: dialects join
    texts that stand side by side and refuse parts that nobody could serve."""

    role: Role
    content: str | tuple[str | Image, ...] | None = None
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def text(self) -> str | None:
        """The content without its images."""
        if not isinstance(self.content, tuple):
            return self.content
        return "".join(part for part in self.content if isinstance(part, str))

    @property
    def images(self) -> tuple[Image, ...]:
        content = self.content if isinstance(self.content, tuple) else ()
        return tuple(part for part in content if isinstance(part, Image))


class Tool(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A function the model may call. `parameters` is its JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whether the answer has calls: as the model likes (`auto`), never (`none`) or at least one (`required`).

    `names` are the only tools that may be called, all of them where it is empty; `required` with one name forces that
    tool. Without `parallel` an answer has one call at most.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    parallel: bool = True


class JsonOutput(msgspec.Struct, frozen=True, kw_only=True, tag="json_object"):
    """The text is any JSON object."""


class SchemaOutput(msgspec.Struct, frozen=True, kw_only=True, tag="json_schema"):
    """The text is JSON that the schema accepts. Not `strict`: the client does not insist on every detail of it."""

    schema: dict[str, Any]
    strict: bool = True


class RegexOutput(msgspec.Struct, frozen=True, kw_only=True, tag="regex"):
    """The whole text matches `pattern`."""

    pattern: str


class GrammarOutput(msgspec.Struct, frozen=True, kw_only=True, tag="grammar"):
    """The whole text derives from the rule `start` of a grammar in the notation of Lark."""

    grammar: str


ResponseFormat = JsonOutput | SchemaOutput | RegexOutput | GrammarOutput


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What both kinds of request share. `n` choices are sampled from one prompt.

    `stop` strings end the output where they first occur, whatever the token borders, and are left out of it.
    `session` is the client's own session id, only ever used together with its tenant.
    """

    model: str
    sampling: SamplingParams = SamplingParams()
    n: int = 1
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    lane: Lane = Lane.STANDARD
    service_tier: str | None = None
    session: str | None = None


class ChatRequest(Request, frozen=True, kw_only=True):
    """A conversation to continue.

    `template_args` reach the model's renderer: `thinking` and `enable_thinking` (the same wish under both of its
    names), `reasoning_effort`, `preserve_thinking` and whatever else the client sets. `response_format` holds for the
    text of the answer, not for its reasoning or calls. With `constrain_tools` calls can only name declared tools and
    take arguments that their schemas accept. `reasoning_budget` is in tokens; None is no limit of its own.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    constrain_tools: bool = True
    response_format: ResponseFormat | None = None
    reasoning_budget: int | None = None
    template_args: dict[str, Any] = {}


class CompletionRequest(Request, frozen=True, kw_only=True):
    """Raw prompts to continue, each a text or token ids; `echo` returns the prompt in front of the output."""

    prompts: tuple[str | tuple[int, ...], ...]
    echo: bool = False


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One sampled token: its text as bytes (a token may be part of a character), its log-probability under the
    distribution before temperature and truncation, and the likeliest alternatives, best first."""

    id: int
    text: bytes
    logprob: float
    top: tuple[tuple[int, bytes, float], ...] = ()


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag="begun"):
    """The engine is at work. `usage` counts the input. Comes once, before anything that the engine puts out."""

    usage: Usage


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """More output of choice `index`; concatenated deltas are the whole output."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningDelta(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning"):
    """More reasoning of choice `index`, which comes before its text."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ToolCallStart(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_start"):
    """Choice `index` begins its call number `call` (0, 1, ...). `id` and `name` come once, here."""

    index: int
    call: int
    id: str
    name: str


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_delta"):
    """More JSON text of a call's arguments; concatenated deltas are the arguments. Nothing sent is taken back."""

    index: int
    call: int
    arguments: str


class ToolCallDone(msgspec.Struct, frozen=True, kw_only=True, tag="tool_call_done"):
    """A call ended. Not `complete` when the output broke off inside of it: it was streamed in part and is no part of a
    whole answer. `valid` says whether its arguments are a JSON object."""

    index: int
    call: int
    complete: bool = True
    valid: bool = True


class ChoiceDone(msgspec.Struct, frozen=True, kw_only=True, tag="choice_done"):
    """Choice `index` ended. Nothing follows for it. `stop` is the stop string that ended it, if one did."""

    index: int
    reason: FinishReason
    stop: str | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True, tag="done"):
    """The request ended; `usage` covers all choices, the prompt counted once."""

    usage: Usage


Delta = ReasoningDelta | TextDelta | ToolCallStart | ToolCallDelta | ToolCallDone
Event = Begun | Delta | ChoiceDone | Done
