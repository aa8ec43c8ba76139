"""An agent, unmodified, reads a file with its own tool because Stoker's model asks for it, and is told what it says.

The engine is a script (scripted.py), everything else is real. Holds when the agent quotes what only the file says,
Stoker logged the agent's session id, and the second request's prompt came mostly from the cache: as the agent counts it
and as Stoker does. `python -m clients.tool_turn --install FOLDER AGENT`
"""

from __future__ import annotations

import argparse
import logging
import re
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

from clients.agents import AGENTS, Agent, Outcome, run
from clients.scripted import ToolScript, scripted_server
from clients.server import CheckError

PROMPT = "What does the file note.txt say? Read it."
LEAST_CACHED = 0.9


class RequestLog(logging.Handler):
    """The gateway's log lines of requests under /v1, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "action", "") == "http.request" and str(vars(record)["path"]).startswith("/v1/"):
            self.entries.append(vars(record))


def check(outcome: Outcome, secret: str, logged: list[dict[str, Any]]) -> None:
    """Compare what the client shows with what the server logged. Raises CheckError at the first thing amiss."""
    failed = [entry for entry in logged if entry["status"] != 200]
    if failed:
        raise CheckError(f"Stoker answered {failed[0]['path']} with {failed[0]['status']}: {failed[0].get('error')}")
    if secret not in outcome.text:
        raise CheckError(f"the agent does not say what the file says: {outcome.text[:500]!r}")
    sessions = {entry.get("session") for entry in logged}
    if sessions != {outcome.session}:
        raise CheckError(f"the agent's session is {outcome.session}, Stoker logged {sessions}")
    last = logged[-1]
    if last["tokens_cached"] < LEAST_CACHED * last["tokens_in"]:
        raise CheckError(f"only {last['tokens_cached']} of the last prompt's {last['tokens_in']} tokens were cached")
    if outcome.cached != last["tokens_cached"]:
        raise CheckError(f"the agent counts {outcome.cached} cached tokens, Stoker {last['tokens_cached']}")


def converse(agent: Agent, install: Path, folder: Path, log: RequestLog) -> None:
    home, project = folder / "home", folder / "project"
    home.mkdir()
    project.mkdir()
    secret = f"kingfisher-{secrets.randbelow(10**9):09d}"
    note = project / "note.txt"
    note.write_text(f"The word of the day is {secret}.\n")
    tool, arguments = agent.call(note)
    script = ToolScript(tool, arguments, re.compile(r"kingfisher-\d{9}"))
    with scripted_server(script) as server:
        outcome = run(agent, install, home, project, server.base, PROMPT)
    print(f"  {agent.name}: {outcome.text}")
    for entry in log.entries:
        line = "  stoker: {path} {status} session={session} in={tokens_in} cached={tokens_cached} out={tokens_out}"
        print(line.format_map({"session": None, "tokens_in": 0, "tokens_cached": 0, "tokens_out": 0, **entry}))
    check(outcome, secret, log.entries)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clients.tool_turn", description=__doc__)
    parser.add_argument("--install", type=Path, required=True, metavar="FOLDER", help="where npm installed the agent")
    parser.add_argument("agent", choices=AGENTS)
    options = parser.parse_args()
    agent = AGENTS[options.agent]
    log = RequestLog()
    gateway = logging.getLogger("stoker.gateway")
    gateway.addHandler(log)
    gateway.setLevel(logging.INFO)
    print(f"{agent.name}: a turn with a tool")
    install = options.install.resolve()
    try:
        # not under /tmp: Codex refuses to work with a home there
        with tempfile.TemporaryDirectory(prefix="run-", dir=install, ignore_cleanup_errors=True) as name:
            converse(agent, install, Path(name), log)
    except CheckError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print("ok: the tool ran, its result came back, one session, the history came from the cache")
    return 0


if __name__ == "__main__":
    sys.exit(main())
