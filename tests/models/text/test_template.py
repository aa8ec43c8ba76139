"""Chat templates: transformers' dialect of Jinja, and that neither template nor input can break out or run away."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from stoker.models.source import ModelError
from stoker.models.text.template import MAX_OUTPUT, ChatTemplate, read_templates
from stoker.types.errors import ErrorKind, StokerError

SOURCES = [
    "{% for m in messages %}\n  {% if m.role == 'user' %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}\nend",
    "{{ tools | tojson }} {{ tools | tojson(indent=2) }} {{ messages | tojson(ensure_ascii=True) }}",
    "{{ tools | tojson(separators=(',', ':'), sort_keys=True) }}",
    "{% for i in range(9) %}{% if i == 2 %}{% continue %}{% elif i > 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{{ loop.index0 }}{{ loop.last }}"
    "{{ loop.length }}{{ loop.previtem.role if loop.previtem }}{{ loop.nextitem is defined }}{% endfor %}{{ ns.n }}",
    "{% macro show(m, up=false) %}{{ m.content | upper if up else m.content | trim }}{% endmacro %}"
    "{% for m in messages[::-1] %}{{ show(m, up=loop.first) }}{% else %}none{% endfor %}",
    "{% generation %}{{ messages[0]['content'] }}{% endgeneration %}|{{ strftime_now('%%') }}",
    "{%- for k, v in tools[0].function.items() %}{{ k ~ '=' ~ v }}{% endfor -%} {{ dict(a=1) }} {{ nothing }}",
    "{{ messages | map(attribute='role') | join(',') }}"
    "{{ (messages | selectattr('role', 'equalto', 'user') | list) | length }}",
    "{{ '-' * 5 }}{{ 3 * 4 }}{{ 2.5 * 2 }}{{ [1] * 3 }}{{ '%s!' % messages[0].role }}{{ '{}'.format(1) }}",
]
VARIABLES: dict[str, Any] = {
    "messages": [{"role": "system", "content": "é <b> & 'q' 日本\n"}, {"role": "user", "content": "  hi\U0001f600 "}],
    "tools": [{"type": "function", "function": {"name": "b", "a": {"z": 1, "a": None}, "description": "ü"}}],
}


@pytest.mark.parametrize("source", SOURCES)
def test_as_transformers_renders(source: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.utils.chat_template_utils import render_jinja_template

        (expected,), _ = render_jinja_template([VARIABLES["messages"]], tools=VARIABLES["tools"], chat_template=source)
    assert ChatTemplate(source, "test").render(VARIABLES) == expected


def refused(source: str, **variables: Any) -> str:
    with pytest.raises(StokerError) as caught:
        ChatTemplate(source, "test").render(VARIABLES | variables)
    assert caught.value.kind is ErrorKind.INVALID
    assert caught.value.code == "chat_template_error"
    return caught.value.message


def test_its_own_words_reach_the_client() -> None:
    assert "roles must alternate" in refused("{{ raise_exception('roles must alternate') }}")
    assert "NoneType" in refused("{{ 'a' + none }}")
    assert "undefined" in refused("{{ nothing.at.all }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ (messages | attr('__class__')).__name__.x }}",
        "{{ '{0.__class__.__mro__[1].x}'.format(messages) }}",
        "{{ self.__init__.__globals__.x }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ namespace.__init__.__globals__.x }}",
        "{{ dict.mro()[1] }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='system') }}",
        "{% set ns = namespace() %}{% set ns.__class__ = dict %}{{ ns.__class__.mro() }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
    ],
)
def test_no_way_out_of_the_sandbox(source: str) -> None:
    refused(source)
    assert VARIABLES["messages"][0]["role"] == "system"


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{{ i }}{% endfor %}{% endfor %}",
        "{{ 'x' * 10000000000 }}",
        "{{ [0] * 10000000000 }}",
        "{{ 10000000000 * 'x' }}",
        "{{ 9 ** 9 ** 9 ** 9 }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set big = 'x' * 1000000 %}{% for i in range(1000) %}{{ big }}{% endfor %}",
        "{% for a in messages recursive %}{{ loop(messages) }}{% endfor %}",
    ],
)
def test_runaways_are_stopped(source: str) -> None:
    began = time.monotonic()
    refused(source)
    assert time.monotonic() - began < 20


def test_long_conversations_are_no_runaways() -> None:
    source = "{% for m in messages %}{{ m.content }}{% endfor %}"
    text = "x" * (MAX_OUTPUT // 1000)
    assert len(ChatTemplate(source, "t").render({"messages": [{"content": text}] * 900})) == len(text) * 900


@pytest.mark.parametrize("source", ["{% for %}", "{{ a", "{% unknown %}", "{{ a | nofilter }}", "{% if a %}"])
def test_invalid_templates_are_model_errors(source: str) -> None:
    with pytest.raises(ModelError, match="chat template of some/folder"):
        ChatTemplate(source, "some/folder")


def test_literals() -> None:
    assert ChatTemplate("a{{ 'b' + c }}{% if d == 'e' %}f{% endif %}", "t").literals == {"a", "b", "e", "f"}


def test_where_templates_come_from(tmp_path: Path) -> None:
    config = tmp_path / "tokenizer_config.json"
    assert read_templates(tmp_path) == {}
    config.write_text(json.dumps({"chat_template": "one"}))
    assert read_templates(tmp_path) == {"default": "one"}
    named = [{"name": "default", "template": "two"}, {"name": "tool_use", "template": "three"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert read_templates(tmp_path) == {"default": "two", "tool_use": "three"}
    (tmp_path / "chat_template.jinja").write_text("four")
    assert read_templates(tmp_path) == {"default": "four", "tool_use": "three"}
    for wrong in (3, ["a"], [{"name": "default"}]):
        config.write_text(json.dumps({"chat_template": wrong}))
        with pytest.raises(ModelError, match="chat_template must be"):
            read_templates(tmp_path)
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    config.unlink()
    with pytest.raises(ModelError, match=r"chat_template\.jinja"):
        read_templates(tmp_path)
