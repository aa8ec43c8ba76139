"""How each agent is started against a Stoker, and what its one-shot output says. Nothing of any of them is vendored."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.opencode import configuration, find_program, parse_events
from clients.server import CheckError

TURN_SECONDS = 180


@dataclass(frozen=True)
class Outcome:
    """What the client shows of a turn: all it printed, its last words, and its own count of cached prompt tokens."""

    shown: str
    text: str
    session: str
    cached: int


@dataclass(frozen=True)
class Agent:
    """`program` is found under the install folder. `prepare` writes the client's configuration and returns the command
    and what is added to its environment. `call` is a tool and its arguments that read the file it is given."""

    name: str
    program: Callable[[Path], Path]
    prepare: Callable[[Path, Path, Path, str], tuple[list[str], dict[str, str]]]
    call: Callable[[Path], tuple[str, dict[str, object]]]
    read: Callable[[str], Outcome]


def run(agent: Agent, install: Path, home: Path, project: Path, base: str, prompt: str) -> Outcome:
    """One turn in a home folder of its own. Raises CheckError when the client fails or takes too long."""
    command, env = agent.prepare(agent.program(install), home, project, base)
    try:
        done = subprocess.run(
            [*command, prompt],
            cwd=project,
            env={"HOME": str(home), "PATH": os.environ.get("PATH", "/usr/bin:/bin"), **env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TURN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckError(f"{agent.name} did not end within {TURN_SECONDS} s") from None
    if done.returncode != 0:
        raise CheckError(
            f"{agent.name} ended with status {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        )
    try:
        return agent.read(done.stdout)
    except (KeyError, IndexError, ValueError) as error:
        raise CheckError(
            f"{agent.name} printed something else than expected ({error!r}):\n{done.stdout[-2000:]}"
        ) from error


def lines(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def _codex_program(install: Path) -> Path:
    return install / "node_modules" / ".bin" / "codex"


def _prepare_codex(program: Path, home: Path, project: Path, base: str) -> tuple[list[str], dict[str, str]]:
    settings = [
        'model = "demo"',
        'model_provider = "stoker"',
        "[model_providers.stoker]",
        'name = "Stoker"',
        f'base_url = "{base}/v1"',
        'wire_api = "responses"',
        'env_key = "STOKER_API_KEY"',
    ]
    folder = home / ".codex"
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text("\n".join(settings) + "\n")
    return [str(program), "exec", "--skip-git-repo-check", "--json"], {"STOKER_API_KEY": "none"}


def read_codex(output: str) -> Outcome:
    """`codex exec --json`: one event a line."""
    events = lines(output)
    said = [e["item"]["text"] for e in events if e["type"] == "item.completed" and e["item"]["type"] == "agent_message"]
    usages = [event["usage"] for event in events if event["type"] == "turn.completed"]
    return Outcome(output, said[-1], events[0]["thread_id"], usages[-1]["cached_input_tokens"])


def _claude_program(install: Path) -> Path:
    found = sorted((install / "node_modules" / "@anthropic-ai").glob("claude-code-*/claude"))
    if not found:
        raise CheckError(f"there is no Claude Code program under {install}: make client-claude installs it")
    return found[0]


def _prepare_claude(program: Path, home: Path, project: Path, base: str) -> tuple[list[str], dict[str, str]]:
    env = {
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_AUTH_TOKEN": "none",
        "ANTHROPIC_MODEL": "demo",
        "ANTHROPIC_SMALL_FAST_MODEL": "demo",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }
    return [str(program), "-p", "--verbose", "--output-format", "stream-json"], env


def read_claude(output: str) -> Outcome:
    """`claude -p --verbose --output-format stream-json`: one message a line, the result last."""
    result = lines(output)[-1]
    if result["is_error"]:
        raise ValueError(result["result"])
    return Outcome(output, result["result"], result["session_id"], result["usage"]["cache_read_input_tokens"])


def _prepare_opencode(program: Path, home: Path, project: Path, base: str) -> tuple[list[str], dict[str, str]]:
    (project / "opencode.json").write_text(json.dumps(configuration(base), indent=1))
    env = {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    return [str(program), "run", "--format", "json"], env


def read_opencode(output: str) -> Outcome:
    """`opencode run --format json`: one event a line, the counts those of its last request."""
    turn = parse_events(output)
    last = [event["part"]["text"] for event in lines(output) if event["type"] == "text"][-1]
    return Outcome(output, last, turn.session, turn.cached)


AGENTS = {
    "codex": Agent(
        "Codex", _codex_program, _prepare_codex, lambda file: ("exec_command", {"cmd": f"cat {file.name}"}), read_codex
    ),
    "claude": Agent(
        "Claude Code", _claude_program, _prepare_claude, lambda file: ("Read", {"file_path": str(file)}), read_claude
    ),
    "opencode": Agent(
        "OpenCode", find_program, _prepare_opencode, lambda file: ("read", {"filePath": str(file)}), read_opencode
    ),
}
