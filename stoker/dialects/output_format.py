"""How a client constrains the text of its answer: `response_format`, `text.format` of the Responses API, vLLM names."""

from __future__ import annotations

from stoker.dialects.fields import Fields, unsupported
from stoker.dialects.tools import read_value
from stoker.types.chat import GrammarOutput, JsonOutput, RegexOutput, ResponseFormat, SchemaOutput
from stoker.types.errors import invalid

MAX_PATTERN_CHARS = 64 * 1024

_KINDS = ("text", "json_object", "json_schema", "regex", "grammar")


def read_response_format(fields: Fields) -> ResponseFormat | None:
    """`response_format`, or one of vLLM's `guided_json`, `guided_regex` and `structured_outputs`."""
    given = fields.object("response_format")
    found = [] if given is None else [read_format(given)]
    found += _read_guided(fields, "guided_")
    structured = fields.object("structured_outputs")
    found += [] if structured is None else _read_guided(structured, "")
    wanted = [item for item in found if item is not None]
    if len(wanted) > 1:
        raise invalid("invalid_value", "The output is constrained in more than one way.", param="response_format")
    return wanted[0] if wanted else None


def read_format(fields: Fields) -> ResponseFormat | None:
    """One format object. A schema is taken in OpenAI's envelope or bare, beside `type` or under `json_schema`."""
    match fields.choice("type", _KINDS):
        case None:
            raise fields.missing("type")
        case "text":
            return None
        case "json_object":
            return JsonOutput() if fields.object("schema") is None else _schema(fields)
        case "json_schema":
            inner = fields.object("json_schema")
            if inner is None:
                return _schema(fields)
            return (
                _schema(inner)
                if inner.get("schema") is not None
                else SchemaOutput(schema=read_value(fields, "json_schema") or {})
            )
        case "regex":
            return RegexOutput(pattern=fields.required_text("pattern", longest=MAX_PATTERN_CHARS))
        case _:
            return GrammarOutput(grammar=fields.required_text("grammar", longest=MAX_PATTERN_CHARS))


def _schema(fields: Fields) -> SchemaOutput:
    schema = read_value(fields, "schema")
    if schema is None:
        raise fields.missing("schema")
    return SchemaOutput(schema=schema, strict=fields.get("strict") is None or fields.boolean("strict"))


def _read_guided(fields: Fields, prefix: str) -> list[ResponseFormat]:
    for name in ("choice", "grammar", "json_object", "structural_tag"):
        if fields.get(prefix + name):
            raise unsupported(fields.param(prefix + name), "use 'response_format'")
    found: list[ResponseFormat] = []
    schema = read_value(fields, prefix + "json")
    if schema is not None:
        found.append(SchemaOutput(schema=schema))
    pattern = fields.text(prefix + "regex", longest=MAX_PATTERN_CHARS)
    if pattern is not None:
        found.append(RegexOutput(pattern=pattern))
    return found
