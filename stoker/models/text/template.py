"""Chat templates: Jinja from the model's files, run in a sandbox with the names transformers gives its templates.

The template belongs to whoever chose the model, its input to the client. So it runs without access to Python, and how
often its loops turn, how long its output and how large its strings get is bounded. Knows no tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterable, Mapping
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stoker.models.source import ModelError, read_json
from stoker.models.text.control import JOINT
from stoker.types.errors import invalid

MAX_OUTPUT = 64 << 20  # characters
MAX_TURNS = 5_000_000  # of all loops of one rendering together
_MAX_PRODUCT = 1 << 20  # of numbers, and of lengths of texts and lists, with `*`; `**` is refused
_turns: ContextVar[list[int]] = ContextVar("turns")


class _RefusedError(TemplateError):
    """The template itself, or one of the bounds, refuses the conversation."""


class _Sandbox(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        size = 1
        for side in (left, right):
            size *= side if isinstance(side, int) else len(side) if isinstance(side, str | list | tuple) else 1
        if operator == "**" or size > _MAX_PRODUCT:
            raise _RefusedError(f"the template computes something too large with {operator}")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}` marks text for training; to a server it is a plain block."""

    tags = {"generation"}  # noqa: RUF012 - an attribute of Extension

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """One compiled template. `literals` are all strings it contains, `source` its text. Thread-safe."""

    def __init__(self, source: str, where: str) -> None:
        self.source = source
        self._environment = _environment()
        try:
            tree = self._environment.parse(source)
            constants = (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
            self.literals = frozenset([*(node.data for node in tree.find_all(nodes.TemplateData)), *constants])
            for loop in tree.find_all(nodes.For):
                loop.iter = nodes.Filter(loop.iter, "counted", [], [], None, None)
            code = self._environment.compile(tree)
        except TemplateError as error:
            raise ModelError(f"the chat template of {where} is not valid: {error}") from error
        except RecursionError as error:
            raise ModelError(f"the chat template of {where} is nested too deeply") from error
        names = self._environment.make_globals(None)
        self._template = self._environment.template_class.from_code(self._environment, code, names)

    def render(self, variables: Mapping[str, Any]) -> str:
        """Raises StokerError (INVALID) with the template's own words when it refuses the conversation."""
        output: list[str] = []
        size = 0
        _turns.set([0])
        try:
            for piece in self._template.generate(variables):
                size += len(piece)
                if size > MAX_OUTPUT:
                    raise _RefusedError(f"the prompt is longer than {MAX_OUTPUT} characters")
                output.append(piece)
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise invalid(
                "chat_template_error", f"the model's chat template says: {error}", param="messages"
            ) from error
        except RecursionError as error:
            raise invalid("chat_template_error", "the chat template recurses too deeply", param="messages") from error
        return "".join(output)


def read_templates(root: Path) -> dict[str, str]:
    """The named templates of a model folder: `default` and, where there is one, `tool_use`. Empty if it has none."""
    found: dict[str, str] = {}
    config = root / "tokenizer_config.json"
    named = read_json(config).get("chat_template") if config.is_file() else None
    if isinstance(named, str):
        found["default"] = named
    elif isinstance(named, list):
        for item in named:
            match item:
                case {"name": str(name), "template": str(source)}:
                    found[name] = source
                case _:
                    raise ModelError(f"{config}: chat_template must be a text or a list of names and templates")
    elif named is not None:
        raise ModelError(f"{config}: chat_template must be a text or a list of names and templates")
    file = root / "chat_template.jinja"
    if file.is_file():
        try:
            found["default"] = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"cannot read {file}: {error}") from error
    return found


def _environment() -> Environment:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation], autoescape=False
    )
    filters: dict[str, Any] = environment.filters
    filters.update(tojson=_to_json, counted=_counted)
    names: dict[str, Any] = environment.globals
    names.update(raise_exception=_raise, strftime_now=_now)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is, where Jinja's own filter escapes for HTML and sorts. A joint stays a joint."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return re.sub(f"[^\\x00-\\x7f{JOINT}]", lambda match: json.dumps(match[0])[1:-1], text) if ensure_ascii else text


def _counted(items: Iterable[Any]) -> Generator[Any]:
    turns = _turns.get()
    for item in items:
        turns[0] += 1
        if turns[0] > MAX_TURNS:
            raise _RefusedError(f"the template's loops turn more than {MAX_TURNS} times")
        yield item


def _raise(message: object) -> None:
    raise _RefusedError(str(message))


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
