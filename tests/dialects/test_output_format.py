from __future__ import annotations

import pytest

from stoker.dialects.fields import Fields
from stoker.dialects.output_format import read_response_format
from stoker.types.chat import GrammarOutput, JsonOutput, RegexOutput, SchemaOutput
from stoker.types.errors import StokerError

SCHEMA = {"type": "object", "properties": {"schema": {"type": "string"}}}
PLAIN = SchemaOutput(schema=SCHEMA)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, JsonOutput()),
        ({"type": "json_object", "schema": SCHEMA}, PLAIN),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}, PLAIN),
        ({"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}, PLAIN),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": None}}, PLAIN),
        (
            {"type": "json_schema", "json_schema": {"schema": SCHEMA, "strict": False}},
            SchemaOutput(schema=SCHEMA, strict=False),
        ),
        ({"type": "json_schema", "json_schema": SCHEMA}, PLAIN),
        ({"type": "json_schema", "schema": SCHEMA}, PLAIN),
        ({"type": "json_schema", "name": "x", "schema": SCHEMA, "strict": True}, PLAIN),
        ({"type": "regex", "pattern": "a+"}, RegexOutput(pattern="a+")),
        ({"type": "grammar", "grammar": 'start: "a"'}, GrammarOutput(grammar='start: "a"')),
    ],
)
def test_formats(given, expected):
    assert read_response_format(Fields({"response_format": given})) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"guided_json": SCHEMA}, PLAIN),
        ({"guided_regex": "a"}, RegexOutput(pattern="a")),
        ({"structured_outputs": {"json": SCHEMA}}, PLAIN),
        ({"structured_outputs": {"regex": "a"}}, RegexOutput(pattern="a")),
        ({"structured_outputs": {}}, None),
    ],
)
def test_names_that_vllm_has(body, expected):
    assert read_response_format(Fields(body)) == expected


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        ({"response_format": {}}, "missing_required_parameter", "response_format.type"),
        ({"response_format": {"type": "yaml"}}, "invalid_value", "response_format.type"),
        ({"response_format": "json"}, "invalid_type", "response_format"),
        ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": "x"}}},
            "invalid_type",
            "response_format.json_schema.schema",
        ),
        ({"response_format": {"type": "regex"}}, "missing_required_parameter", "response_format.pattern"),
        ({"response_format": {"type": "grammar", "grammar": 5}}, "invalid_type", "response_format.grammar"),
        (
            {"response_format": {"type": "regex", "pattern": "a" * 65_537}},
            "string_above_max_length",
            "response_format.pattern",
        ),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "invalid_value", "response_format"),
        ({"guided_choice": ["a"]}, "unsupported_parameter", "guided_choice"),
        ({"structured_outputs": {"grammar": "a"}}, "unsupported_parameter", "structured_outputs.grammar"),
    ],
)
def test_refusals_name_the_parameter(body, code, param):
    with pytest.raises(StokerError) as failure:
        read_response_format(Fields(body))
    assert (failure.value.code, failure.value.param) == (code, param)
