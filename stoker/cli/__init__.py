"""The command line: `stoker COMMAND`. Each command is a module of its own and imports what it needs when it runs,
so that help is instant and never imports torch."""

from __future__ import annotations

import sys

import typer
from typer.exceptions import Abort, TyperException

from stoker.cli import chat, check, doctor, ledger, operate, parse, render, serve, version
from stoker.cli.output import fail

EXAMPLES = """
[bold]Examples[/]

  stoker serve                   serve the demo model on 127.0.0.1:8000
  stoker chat                    talk to it in this terminal
  stoker status                  models and replicas of a running server
  stoker drain demo/1            take a replica out of service, without a failed request
  stoker restart --rolling       start all engines anew, one after the other
  stoker reload                  have a server read its configuration again
  stoker doctor                  what this host can do
  stoker check DIR               does a model fit together, and on which hardware
  stoker render --family glm47   what a conversation on standard input becomes as a prompt
  stoker parse --family glm47    what an output on standard input becomes as a message
  stoker ledger --help           what the tokens cost, and where a saving comes from
  stoker version                 which Stoker, Python and platform this is
"""

app = typer.Typer(
    name="stoker",
    epilog=EXAMPLES,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=serve.EXAMPLES)(serve.serve)
app.command(epilog=chat.EXAMPLES)(chat.chat)
app.command(epilog=operate.STATUS_EXAMPLES)(operate.status)
app.command(epilog=operate.DRAIN_EXAMPLES)(operate.drain)
app.command(epilog=operate.RESTART_EXAMPLES)(operate.restart)
app.command(epilog=operate.RELOAD_EXAMPLES)(operate.reload)
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)
app.command(epilog=check.EXAMPLES)(check.check)
app.command(epilog=render.EXAMPLES)(render.render)
app.command(epilog=parse.EXAMPLES)(parse.parse)
app.add_typer(ledger.app, name="ledger", epilog=ledger.EXAMPLES)
app.command(epilog=version.EXAMPLES)(version.version)


@app.callback()
def stoker() -> None:
    """Serve open-weight mixture-of-experts models to agents."""


def main() -> None:
    """Run the command line and leave. A wrong flag is one line on stderr and exit status 2, never a traceback."""
    try:
        status = app(sys.argv[1:] or ["--help"], prog_name="stoker", standalone_mode=False)
    except TyperException as error:
        status = fail(f"{error.format_message()} (see stoker --help)", code=error.exit_code).exit_code
    except Abort:
        status = 130
    sys.exit(status)
