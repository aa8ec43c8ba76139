"""OpenCode, unmodified, has two turns in one session with the demo model behind Stoker.

Holds when both answers arrive, Stoker logged OpenCode's session id, and the second turn's prompt came mostly from the
prefix cache: as OpenCode counts it and as Stoker does. `python -m clients.opencode --install FOLDER`
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.server import CheckError, StokerServer, stoker_server

TURN_SECONDS = 300
LEAST_CACHED = 0.8
TURNS = ("What is the capital of France? Answer in one sentence.", "And the capital of Italy?")


@dataclass(frozen=True)
class Turn:
    """What OpenCode reported of one `run`: the text it shows, and its own count of the prompt's tokens."""

    session: str
    text: str
    uncached: int
    cached: int

    @property
    def cached_share(self) -> float:
        return self.cached / max(1, self.cached + self.uncached)


def parse_events(output: str) -> Turn:
    """The events that `opencode run --format json` prints, one a line."""
    events: list[dict[str, Any]] = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    texts = [event["part"]["text"] for event in events if event["type"] == "text"]
    ends = [event["part"]["tokens"] for event in events if event["type"] == "step_finish"]
    if not ends or not "".join(texts).strip():
        raise CheckError(f"OpenCode shows no answer:\n{output[-2000:]}")
    return Turn(events[0]["sessionID"], "".join(texts).strip(), ends[-1]["input"], ends[-1]["cache"]["read"])


def configuration(base: str) -> dict[str, Any]:
    """opencode.json: one provider, nothing from outside. The limit keeps a small model's answers short, and
    at temperature 0 they make some sense."""
    model = {"name": "demo", "limit": {"context": 8192, "output": 256}}
    return {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "enabled_providers": ["stoker"],
        "model": "stoker/demo",
        "small_model": "stoker/demo",
        "agent": {"build": {"temperature": 0}},
        "provider": {
            "stoker": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "Stoker",
                "options": {"baseURL": f"{base}/v1", "apiKey": "none"},
                "models": {"demo": model},
            }
        },
    }


def find_program(install: Path) -> Path:
    """The program for this platform: npm may have brought several builds, of which not all run here."""
    for path in sorted((install / "node_modules").glob("opencode-*/bin/opencode")):
        try:
            done = subprocess.run([path, "--version"], capture_output=True, timeout=60, check=False)
        except OSError:
            continue
        if done.returncode == 0:
            return path.resolve()
    raise CheckError(f"there is no OpenCode program that runs here under {install}: make client-opencode installs it")


def run_turn(program: Path, home: Path, project: Path, prompt: str, *, proceed: bool) -> Turn:
    """One `opencode run`; with `proceed` in the session of the last one. It sees a home folder of its own."""
    command = [str(program), "run", "--format", "json", *(["--continue"] if proceed else []), prompt]
    env = {
        "HOME": str(home),
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
    }
    try:
        done = subprocess.run(
            command,
            cwd=project,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TURN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise CheckError(f"OpenCode did not end within {TURN_SECONDS} s") from None
    if done.returncode != 0:
        raise CheckError(f"OpenCode ended with status {done.returncode}:\n{done.stderr[-2000:]}")
    return parse_events(done.stdout)


def check(turns: list[Turn], logged: list[dict[str, Any]]) -> None:
    """Compare what the client saw with what the server logged. Raises CheckError at the first thing amiss."""
    sessions = {turn.session for turn in turns}
    if len(sessions) != 1:
        raise CheckError(f"the turns were not one session: {sessions}")
    failed = [entry for entry in logged if entry["status"] != 200]
    if failed:
        raise CheckError(f"Stoker answered with an error: {failed[0]}")
    if {entry.get("session") for entry in logged} != sessions:
        raise CheckError(f"OpenCode's session is {sessions}, Stoker logged {[e.get('session') for e in logged]}")
    last = turns[-1]
    counted = [(entry["tokens_in"], entry["tokens_cached"]) for entry in logged]
    if (last.cached + last.uncached, last.cached) not in counted:
        raise CheckError(f"OpenCode counts {last.cached} cached and {last.uncached} new, Stoker logged {counted}")
    if last.cached_share < LEAST_CACHED:
        raise CheckError(f"only {last.cached_share:.0%} of the second turn's prompt came from the cache")


def converse(install: Path, server: StokerServer, folder: Path) -> None:
    program = find_program(install)
    home, project = folder / "home", folder / "project"
    home.mkdir()
    project.mkdir()
    (project / "opencode.json").write_text(json.dumps(configuration(server.base), indent=1))
    turns: list[Turn] = []
    for prompt in TURNS:
        turn = run_turn(program, home, project, prompt, proceed=bool(turns))
        turns.append(turn)
        print(f"  you:      {prompt}\n  opencode: {turn.text}")
        print(f"            {turn.cached} of {turn.cached + turn.uncached} prompt tokens from the cache", flush=True)
    logged = server.requests()
    for entry in logged:
        line = "  stoker:   {path} {status} session={session} in={tokens_in} cached={tokens_cached} out={tokens_out}"
        print(line.format_map({"session": None, "tokens_in": 0, "tokens_cached": 0, "tokens_out": 0, **entry}))
    check(turns, logged)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clients.opencode", description=__doc__)
    parser.add_argument("--install", type=Path, required=True, metavar="FOLDER", help="where npm installed opencode-ai")
    options = parser.parse_args()
    print("OpenCode against stoker serve --model demo")
    try:
        with tempfile.TemporaryDirectory(prefix="stoker-opencode-", ignore_cleanup_errors=True) as name:
            folder = Path(name)
            with stoker_server(folder) as server:
                converse(options.install, server, folder)
    except CheckError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print("ok: both turns answered, one session, the second turn read its history from the cache")
    return 0


if __name__ == "__main__":
    sys.exit(main())
