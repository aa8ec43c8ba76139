"""How long a client wants the model to think: many spellings, one meaning.

What the renderer sees are template arguments. Thinking on or off is set under both names that templates use for it;
the client's own `chat_template_kwargs` go before everything else it says.
"""

from __future__ import annotations

from typing import Any

from stoker.dialects.fields import MAX_NAME_CHARS, Fields, wrong_type
from stoker.types.errors import invalid

MAX_TEMPLATE_ARGS = 64
MAX_BUDGET = (1 << 31) - 1
SWITCHES = ("thinking", "enable_thinking")


def read_thinking(fields: Fields, *, effort: str | None = None) -> tuple[dict[str, Any], int | None]:
    """(template arguments, reasoning budget in tokens) from `chat_template_kwargs`, `thinking` (the makers' and
    Anthropic's), `reasoning` (Responses', OpenRouter's), `reasoning_effort` and `enable_thinking`; `effort` is what a
    dialect found under yet another name."""
    on = fields.boolean("enable_thinking") if fields.get("enable_thinking") is not None else None
    effort = fields.text("reasoning_effort", longest=MAX_NAME_CHARS) or effort
    budget = fields.integer("thinking_token_budget", 0, MAX_BUDGET)
    args: dict[str, Any] = {}
    reasoning = fields.object("reasoning")
    if reasoning is not None:
        effort = reasoning.text("effort", longest=MAX_NAME_CHARS) or effort
        on = reasoning.boolean("enabled") if reasoning.get("enabled") is not None else on
        budget = _first(reasoning.integer("max_tokens", 0, MAX_BUDGET), budget)
    thinking = fields.object("thinking")
    if thinking is not None:
        kind = thinking.choice("type", ("enabled", "adaptive", "between_tools", "disabled"))
        on = on if kind is None else kind != "disabled"
        effort = thinking.text("effort", longest=MAX_NAME_CHARS) or effort
        budget = _first(thinking.integer("budget_tokens", 0, MAX_BUDGET), budget)
        if thinking.text("keep", longest=MAX_NAME_CHARS) == "all":
            args["preserve_thinking"] = True
    if effort == "none":
        on = False
    elif effort is not None:
        args["reasoning_effort"] = effort
    if on is not None:
        args |= dict.fromkeys(SWITCHES, on)
    given = read_template_args(fields)
    switched = next((given[name] for name in SWITCHES if name in given), None)
    if switched is not None:
        args |= dict.fromkeys(SWITCHES, switched)
    return args | given, budget


def read_template_args(fields: Fields) -> dict[str, Any]:
    """Switches for the chat template. Only scalars: nothing here may smuggle in messages or tools."""
    given = fields.object("chat_template_kwargs")
    if given is None:
        return {}
    if len(given.data) > MAX_TEMPLATE_ARGS:
        raise invalid("array_above_max_length", "Too many template arguments.", param="chat_template_kwargs")
    for name, value in given.data.items():
        if isinstance(value, dict | list):
            raise wrong_type(given.param(name), "a string, a number or a boolean", value)
        if isinstance(value, str):
            given.text(name, longest=MAX_NAME_CHARS)
    return given.data


def _first(value: int | None, other: int | None) -> int | None:
    return other if value is None else value
