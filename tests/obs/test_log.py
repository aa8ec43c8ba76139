from __future__ import annotations

import io
import json
import logging

import pytest

from stoker.obs.log import setup


@pytest.fixture
def logged():
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    stream = io.StringIO()

    def start(form, level="info"):
        setup(form, level, stream)
        return stream

    yield start
    root.handlers[:], root.level = before, level


NASTY = 'a\nb\r\x1b[31m "quoted" =\u2028\x9b'


def test_json_lines(logged):
    out = logged("json")
    logging.getLogger("x").info("did %s", NASTY, extra={"action": "x.do", "session": NASTY, "none": None, "n": 5})
    (line,) = out.getvalue().splitlines()
    record = json.loads(line)
    assert record["message"] == f"did {NASTY}"
    assert (record["action"], record["session"], record["n"], record["level"]) == ("x.do", NASTY, 5, "info")
    assert "none" not in record
    assert record["time"].endswith("Z")


@pytest.mark.parametrize("form", ["text", "json"])
def test_one_line_even_for_nasty_values_and_tracebacks(logged, form):
    out = logged(form)
    try:
        raise ValueError(NASTY)
    except ValueError:
        logging.getLogger("x").exception(NASTY, extra={"action": NASTY, "object": object()})
    text = out.getvalue()
    assert text.endswith("\n")
    assert "\n" not in text[:-1]
    assert "\r" not in text
    assert not {"\x1b", "\x9b", "\u2028"} & set(text)
    assert "Traceback" in text


def test_text_lines(logged):
    out = logged("text")
    logging.getLogger("x").warning("hello", extra={"action": "x.do", "path": "/a b", "empty": ""})
    line = out.getvalue()
    assert ' warning hello action=x.do path="/a b" empty=""\n' in line


def test_level(logged):
    out = logged("text", "warning")
    logging.getLogger("x").info("quiet")
    assert out.getvalue() == ""


def test_what_other_libraries_add_to_every_record_is_left_out(logged):
    factory = logging.getLogRecordFactory()

    def marking(*args, **more):
        record = factory(*args, **more)
        record._timestamp_of_theirs = 1
        return record

    logging.setLogRecordFactory(marking)
    try:
        for form in ("text", "json"):
            out = logged(form)
            logging.getLogger("x").warning("hello", extra={"action": "x.do"})
            assert "theirs" not in out.getvalue()
            assert "x.do" in out.getvalue()
    finally:
        logging.setLogRecordFactory(factory)
