"""`stoker version`: what to write into a bug report."""

from __future__ import annotations

import platform

import typer

import stoker

EXAMPLES = """
[bold]Examples[/]

  stoker version
"""


def version() -> None:
    """Show which Stoker, Python and platform this is."""
    host = f"{platform.system()} {platform.machine()}"
    typer.echo(f"stoker {stoker.__version__} · Python {platform.python_version()} · {host}")
