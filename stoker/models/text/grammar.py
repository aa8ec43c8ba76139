"""One grammar for the answer that a request allows: its response format, its tool calls, or free text around calls.

From a chat request and a model's marks to text in llguidance's notation. Owns where calls and answer may stand, and the
limits on tools and on what a client writes as grammar itself. Does not own a family's call syntax (`call_grammar.py`),
schemas (`schema.py`), reasoning (it comes before all of this) or the compiling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from llguidance import regex_to_lark

from stoker.models.text.call_grammar import FORCED_CALLS, MAX_CALLS, SYNTAX, Calls, arguments_schema
from stoker.models.text.lark import ANY, Notation, regex_literal
from stoker.models.text.parse.format import FORMATS
from stoker.models.text.schema import MAX_BYTES, Schema, check, prepare
from stoker.types.chat import (
    ChatRequest,
    GrammarOutput,
    JsonOutput,
    RegexOutput,
    ResponseFormat,
    SchemaOutput,
    Tool,
)
from stoker.types.errors import invalid

MAX_TOOLS = 256
MAX_TEXT = 1 << 20  # characters of a whole grammar
_ANY_OBJECT: Schema = {"type": "object"}
_CLIENT = "client"  # name of the client's own grammar beside ours
_LEAD = r"/[ \n]{0,2}/"  # what models write between reasoning and answer
# Strings and regular expressions of a Lark grammar, within which `<` and `%` are ordinary characters.
_QUOTED = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|//[^\n]*|#[^\n]*')


def grammars(request: ChatRequest, format: str, control: Mapping[str, int]) -> tuple[str, ...]:
    """The grammars that can stand for the request, the most exact first; none if its output is free.

    The second is there for tools that are not `strict`: where a schema has something that no grammar can express, its
    arguments are any object. `format` is the model's output format, `control` maps the texts of its vocabulary's
    control tokens to their ids. Raises StokerError (INVALID) past a limit.
    """
    tools = _callable(request, format)
    output = request.response_format
    if not tools and output is None:
        return ()
    schemas = [check(arguments_schema(tool), f"tools[{at}].function.parameters") for at, tool in enumerate(tools)]
    if isinstance(output, SchemaOutput):
        check(output.schema, "response_format.json_schema.schema")
    found = [_whole(request, tools, schemas, format, control, exact=True)]
    loose = [schema if tool.strict is True else _ANY_OBJECT for tool, schema in zip(tools, schemas, strict=True)]
    if loose != schemas or (isinstance(output, SchemaOutput) and not output.strict):
        found.append(_whole(request, tools, loose, format, control, exact=False))
    if len(found[0]) > MAX_TEXT:
        raise invalid(
            "grammar_too_large",
            f"tools and response format make a grammar of {len(found[0])} characters; {MAX_TEXT} are allowed.",
            param="tools",
        )
    return tuple(found)


def _callable(request: ChatRequest, format: str) -> list[Tool]:
    """The tools whose calls are constrained."""
    choice = request.tool_choice
    if len(request.tools) > MAX_TOOLS:
        raise invalid(
            "too_many_tools", f"{len(request.tools)} tools are declared; {MAX_TOOLS} are allowed.", param="tools"
        )
    if choice.mode == "none" or (choice.mode == "auto" and not request.constrain_tools):
        return []
    if format not in SYNTAX:
        if choice.mode == "auto":
            return []
        raise invalid("unsupported_parameter", "This model has no known form of tool calls.", param="tool_choice")
    return [tool for tool in request.tools if not choice.names or tool.name in choice.names]


def _whole(
    request: ChatRequest,
    tools: Sequence[Tool],
    schemas: Sequence[Schema],
    format: str,
    control: Mapping[str, int],
    *,
    exact: bool,
) -> str:
    to = Notation(control)
    output, choice = request.response_format, request.tool_choice
    answer = None if output is None else _answer(to, output, exact=exact)
    if not tools:
        # White space in front of text that has a form of its own would be part of it.
        lead = _lead(to, format) if isinstance(output, JsonOutput | SchemaOutput) else ""
        return _finished(to, f"{lead} {answer}", output)
    syntax = SYNTAX[format]
    forced = choice.mode == "required"
    # Who leaves the model one tool and no choice wants a call, not as many as it can be made to write.
    most = 1 if not choice.parallel or (forced and len(tools) == 1) else FORCED_CALLS if forced else MAX_CALLS
    lead = _lead(to, format)
    before = sum(len(message.tool_calls) for message in request.messages)
    calls = Calls(to, list(zip(tools, schemas, strict=True)), to.mark(syntax.trigger), most, before)
    if forced:
        return to.grammar(f"{lead} {syntax.region(calls)}")
    if answer is not None:
        return _finished(to, f"{lead} ({syntax.region(calls)} | {answer})", output)
    text = to.terminal(ANY)
    if syntax.trigger in control:
        return to.grammar(f"{text} {syntax.region(calls)}?")
    # The mark is ordinary text: free text is read up to it, and what follows is a call and nothing else.
    up_to = to.rule(f"/(?s:.*){regex_literal(syntax.trigger)}/", options="[lazy]")
    return to.grammar(f"{text} | {syntax.region(calls._replace(first=up_to))}")


def _lead(to: Notation, format: str) -> str:
    """White space between reasoning and answer, where it is the family's layout and not content."""
    return to.terminal(_LEAD) if FORMATS[format].layout else ""


def _answer(to: Notation, output: ResponseFormat, *, exact: bool) -> str:
    """Rule of the answer's text."""
    match output:
        case JsonOutput():
            return to.json(prepare(_ANY_OBJECT, lenient=False))
        case SchemaOutput(schema=schema, strict=strict):
            return to.json(prepare(schema if exact else True, lenient=not strict))
        case RegexOutput(pattern=pattern):
            _check_size(pattern, "response_format.pattern")
            whole = pattern.removeprefix("^")
            whole = whole[:-1] if whole.endswith("$") and not whole.endswith(r"\$") else whole
            return to.terminal(f"/{regex_to_lark(f'(?:{whole})', '')}/")
        case GrammarOutput(grammar=grammar):
            _check_grammar(grammar)
            return f"@{_CLIENT}"


def _finished(to: Notation, start: str, output: ResponseFormat | None) -> str:
    """With the client's own grammar, if there is one, as a grammar beside ours."""
    ours = to.grammar(start)
    if not isinstance(output, GrammarOutput):
        return ours
    named = [{"name": "answer", "lark_grammar": ours}, {"name": _CLIENT, "lark_grammar": output.grammar}]
    return msgspec.json.encode({"grammars": named}).decode()


def _check_size(text: str, param: str) -> None:
    if len(text.encode(errors="replace")) > MAX_BYTES:
        raise invalid("grammar_too_large", f"'{param}' has more than {MAX_BYTES} bytes.", param=param)


def _check_grammar(grammar: str) -> None:
    """A client's grammar is about text: it names no tokens, sets no options and refers to no other grammar."""
    param = "response_format.grammar"
    _check_size(grammar, param)
    bare = _QUOTED.sub("", grammar)
    if found := re.search(r"<|@|%(?!ignore|import|json|regex)", bare):
        raise invalid("invalid_grammar", f"'{param}' may not contain '{found[0]}' outside of strings.", param=param)
