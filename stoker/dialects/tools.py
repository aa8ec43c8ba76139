"""Declared functions and the choice among them, as all dialects share them. Names and bounds; no dialect's envelope."""

from __future__ import annotations

from typing import Literal

from stoker.dialects.fields import MAX_NAME_CHARS, Fields, JsonObject, depth_within
from stoker.types.chat import Tool, ToolChoice
from stoker.types.errors import invalid

MAX_TOOLS = 256
MAX_DEPTH = 32


def read_value(fields: Fields, name: str) -> JsonObject | None:
    """An object that goes on as it is: a schema, a call's arguments. Its depth is bounded, for those who walk it."""
    value = fields.object(name)
    if value is not None and not depth_within(value.data, MAX_DEPTH):
        raise invalid("invalid_value", f"'{value.path}' is nested more than {MAX_DEPTH} deep.", param=value.path)
    return None if value is None else value.data


def read_function(fields: Fields, schema: str = "parameters") -> Tool:
    """A function's declaration from the object that holds its name; `schema` is what its parameters are called."""
    return Tool(
        name=fields.required_text("name", longest=MAX_NAME_CHARS),
        description=fields.text("description"),
        parameters=read_value(fields, schema),
        strict=fields.boolean("strict") if fields.get("strict") is not None else None,
    )


def read_tool_choice(fields: Fields) -> ToolChoice:
    """OpenAI's `tool_choice` and `parallel_tool_calls`: a function in an envelope (chat) or flat (responses)."""
    parallel = fields.get("parallel_tool_calls") is None or fields.boolean("parallel_tool_calls")
    value = fields.get("tool_choice")
    if not isinstance(value, dict):
        match fields.choice("tool_choice", ("none", "auto", "required")):
            case None | "auto":
                return ToolChoice(parallel=parallel)
            case "none":
                return ToolChoice(mode="none", parallel=parallel)
            case _:
                return ToolChoice(mode="required", parallel=parallel)
    choice = Fields.of(value, "tool_choice")
    kind = choice.choice("type", ("function", "allowed_tools"))
    if kind is None:
        raise choice.missing("type")
    if kind == "function":
        return ToolChoice(mode="required", names=(_name(choice),), parallel=parallel)
    allowed = choice.object("allowed_tools") or choice
    mode: Literal["auto", "required"] = (
        "required" if allowed.choice("mode", ("auto", "required")) == "required" else "auto"
    )
    tools = allowed.array("tools", longest=MAX_TOOLS)
    if not tools:
        raise allowed.missing("tools")
    listed = [Fields.of(tool, f"{allowed.param('tools')}[{i}]") for i, tool in enumerate(tools)]
    return ToolChoice(mode=mode, names=tuple(_name(tool) for tool in listed), parallel=parallel)


def check_tool_choice(choice: ToolChoice, tools: tuple[Tool, ...]) -> None:
    """Raises StokerError (INVALID) if the choice forces what is not declared."""
    declared = {tool.name for tool in tools}
    if choice.mode == "required" and not declared:
        raise invalid("invalid_value", "'tool_choice' needs 'tools'.", param="tool_choice")
    for name in choice.names:
        if name not in declared:
            raise invalid(
                "invalid_value", f"'tool_choice' names '{name}', which no tool is called.", param="tool_choice"
            )


def _name(fields: Fields) -> str:
    return (fields.object("function") or fields).required_text("name", longest=MAX_NAME_CHARS)
