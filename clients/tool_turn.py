"""An agent, unmodified, reads a file with its own tool because Stoker's model asks for it; the model sees the result.

The model knows its words by rote (rote.py): which call it makes is fixed, and it goes on differently once a result has
come back. Server, engine, cache, grammar and agent are what they always are. Holds when the agent shows what only the
file says and ends with the words that follow a result, Stoker logged the agent's session id, and the second request's
prompt came mostly from the cache: as the agent counts it and as Stoker does.
`python -m clients.tool_turn --install FOLDER AGENT`
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
from pathlib import Path
from typing import Any

from clients.agents import AGENTS, Agent, Outcome, run
from clients.rote import write_model
from clients.server import CheckError, stoker_server

PROMPT = "What does the file note.txt say? Read it."
LAST_WORDS = "I have read it."
LEAST_CACHED = 0.9
TURN = "<|im_end|>\n<|im_start|>assistant\n"


def lessons(tool: str, arguments: dict[str, object]) -> list[tuple[str, str]]:
    """Call the tool in any conversation whose last message is no result."""
    call = json.dumps({"name": tool, "arguments": arguments})
    return [
        (TURN, f"I will look.\n<tool_call>\n{call}\n</tool_call>"),
        (f"_response>{TURN}", LAST_WORDS),
    ]


def check(outcome: Outcome, secret: str, logged: list[dict[str, Any]]) -> None:
    """Compare what the client shows with what the server logged. Raises CheckError at the first thing amiss."""
    failed = [entry for entry in logged if entry["status"] != 200]
    if failed:
        raise CheckError(f"Stoker answered {failed[0]['path']} with {failed[0]['status']}: {failed[0].get('error')}")
    if secret not in outcome.shown:
        raise CheckError(f"the agent does not show what the file says: {outcome.shown[-2000:]!r}")
    if outcome.text != LAST_WORDS:
        raise CheckError(f"the model did not see the tool's result: it ends with {outcome.text[:500]!r}")
    sessions = {entry.get("session") for entry in logged}
    if sessions != {outcome.session}:
        raise CheckError(f"the agent's session is {outcome.session}, Stoker logged {sessions}")
    last = logged[-1]
    if last["tokens_cached"] < LEAST_CACHED * last["tokens_in"]:
        raise CheckError(f"only {last['tokens_cached']} of the last prompt's {last['tokens_in']} tokens were cached")
    if outcome.cached != last["tokens_cached"]:
        raise CheckError(f"the agent counts {outcome.cached} cached tokens, Stoker {last['tokens_cached']}")


def converse(agent: Agent, install: Path, folder: Path) -> None:
    home, project, model = folder / "home", folder / "project", folder / "model"
    home.mkdir()
    project.mkdir()
    secret = f"kingfisher-{secrets.randbelow(10**9):09d}"
    note = project / "note.txt"
    note.write_text(f"The word of the day is {secret}.\n")
    write_model(model, lessons(*agent.call(note)))
    with stoker_server(folder, "--dtype", "float32", model=str(model)) as server:
        outcome = run(agent, install, home, project, server.base, PROMPT)
        logged = server.requests()
    print(f"  {agent.name}: {outcome.text}")
    for entry in logged:
        line = "  stoker: {path} {status} session={session} in={tokens_in} cached={tokens_cached} out={tokens_out}"
        print(line.format_map({"session": None, "tokens_in": 0, "tokens_cached": 0, "tokens_out": 0, **entry}))
    check(outcome, secret, logged)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m clients.tool_turn", description=__doc__)
    parser.add_argument("--install", type=Path, required=True, metavar="FOLDER", help="where npm installed the agent")
    parser.add_argument("agent", choices=AGENTS)
    options = parser.parse_args()
    agent = AGENTS[options.agent]
    print(f"{agent.name}: a turn with a tool")
    install = options.install.resolve()
    try:
        # not under /tmp: Codex refuses to work with a home there
        with tempfile.TemporaryDirectory(prefix="run-", dir=install, ignore_cleanup_errors=True) as name:
            converse(agent, install, Path(name))
    except CheckError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print("ok: the tool ran, its result came back, one session, the history came from the cache")
    return 0


if __name__ == "__main__":
    sys.exit(main())
