"""Help is there for every command, instant and free of torch; a mistake is one line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stoker.cli import app

COMMANDS = sorted(info.name or info.callback.__name__ for info in app.registered_commands if info.callback)


def stoker(*args: str, code: str = "from stoker.cli import main; main()") -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60)


def test_the_commands_are_there() -> None:
    assert {"chat", "doctor", "serve", "version"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_examples(command: str) -> None:
    done = stoker(command, "--help")
    assert done.returncode == 0
    assert not done.stderr
    lines = [line.strip() for line in done.stdout.partition("Examples")[2].splitlines()]
    assert any(line.startswith(f"stoker {command}") for line in lines)


def test_help_lists_every_command_with_an_example() -> None:
    done = stoker()
    assert done.returncode == 0
    assert done.stdout == stoker("--help").stdout
    overview, _, examples = done.stdout.partition("Examples")
    for command in COMMANDS:
        assert f"│ {command} " in overview
        assert f"stoker {command}" in examples


def test_the_command_line_never_imports_torch() -> None:
    """Nor anything else that takes long: help is instant."""
    heavy = {"torch", "numpy", "transformers", "aiohttp", "uvicorn"}
    code = f"import sys, stoker.cli; print(sorted(sys.modules.keys() & {heavy!r}))"
    assert stoker(code=code).stdout.strip() == "[]"


@pytest.mark.parametrize("args", [["nope"], ["version", "--nope"], ["version", "extra"]])
def test_a_wrong_command_line_is_one_line_on_stderr(args: list[str]) -> None:
    done = stoker(*args)
    assert done.returncode == 2
    assert not done.stdout
    assert done.stderr.startswith("stoker: ")
    assert done.stderr.count("\n") == 1
