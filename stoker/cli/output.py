"""How a command says that it failed."""

from __future__ import annotations

import typer


def fail(message: str, *, code: int = 1) -> typer.Exit:
    """Print one line on stderr; raise what this returns to leave with `code`."""
    typer.secho(f"stoker: {' '.join(message.split())}", fg="red", err=True)
    return typer.Exit(code)
