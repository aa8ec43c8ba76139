"""`stoker doctor`: what this host can do, as a page for a person or JSON for a program. The checks are in `checks`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from stoker.config import Config

EXAMPLES = """
[bold]Examples[/]

  stoker doctor                   is everything here that serving needs?
  stoker doctor --data-dir /data  with models and caches in another place
  stoker doctor --json            the same for a program; exit status 1 when serving is impossible
"""

MARKS = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Where Stoker will keep its files.")] = None,
    port: Annotated[int, typer.Option(help="Port that will be served on.", min=1, max=65535)] = Config().gateway.port,
) -> None:
    """Check what this host can do, and say what to do about the rest."""
    from stoker.cli import checks

    found = checks.run(Config(data_dir=data_dir and str(data_dir)).data_path, port)
    able = all(check.status != "fail" for check in found)
    if as_json:
        typer.echo(
            json.dumps({"ok": able, "checks": [check.as_dict() for check in found]}, indent=2, ensure_ascii=False)
        )
    else:
        width = max(len(check.name) for check in found)
        for check in found:
            mark, colour = MARKS[check.status]
            typer.echo(f"{typer.style(mark, fg=colour)} {check.name:{width}}  {check.detail}")
            if check.advice:
                typer.secho(f"  {'':{width}}  {check.advice}", dim=True)
        typer.echo("\nstoker serve will work here." if able else "\nstoker serve cannot work here until ✗ is mended.")
    raise typer.Exit(0 if able else 1)
