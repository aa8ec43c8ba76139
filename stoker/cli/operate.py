"""`stoker status`, `drain`, `restart`, `reload`: what an operator does with a server that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from stoker.cli.output import fail

if TYPE_CHECKING:
    from stoker.cli.admin_client import AdminClient
    from stoker.gateway.admin import ServerStatus

T = TypeVar("T")

STATUS_EXAMPLES = """
[bold]Examples[/]

  stoker status                            models and replicas of the server of this data folder
  stoker status --json | jq .models
  stoker status --admin-url https://models.example.org   of another one; an admin's key in STOKER_ADMIN_KEY
"""
DRAIN_EXAMPLES = """
[bold]Examples[/]

  stoker drain demo/1          it takes no requests, finishes what it has, and stops
  stoker drain demo/1 --undo   it is started again
"""
RESTART_EXAMPLES = """
[bold]Examples[/]

  stoker restart --rolling           every replica, one after the other
  stoker restart --rolling demo      those of a model
  stoker restart --rolling demo/0    one
"""
RELOAD_EXAMPLES = """
[bold]Examples[/]

  stoker reload    models, replicas, aliases and tenants become what the configuration file says now
"""

DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Data folder of the server.")]
AdminUrl = Annotated[str | None, typer.Option("--admin-url", help="Address of a server elsewhere.")]
AdminKey = Annotated[str | None, typer.Option("--key", envvar="STOKER_ADMIN_KEY", help="Key of an admin, with it.")]


def status(
    data_dir: DataDir = None,
    admin_url: AdminUrl = None,
    key: AdminKey = None,
    as_json: Annotated[bool, typer.Option("--json", help="Everything, for programs.")] = False,
) -> None:
    """Show models and replicas of a running server."""
    import msgspec

    found = _ask(_client(data_dir, admin_url, key).status())
    if as_json:
        typer.echo(msgspec.json.encode(found))
    else:
        _show(found)


def drain(
    name: Annotated[str, typer.Argument(help="Replica, as stoker status names it.")],
    undo: Annotated[bool, typer.Option("--undo", help="Take it back.")] = False,
    data_dir: DataDir = None,
    admin_url: AdminUrl = None,
    key: AdminKey = None,
) -> None:
    """Take a replica out of service without a failed request. What takes longer than fleet.drain goes on elsewhere."""
    _ask(_client(data_dir, admin_url, key).operate("drain", {"name": name, "undo": undo}, typer.echo))


def restart(
    name: Annotated[str | None, typer.Argument(help="Model or replica; all otherwise.")] = None,
    rolling: Annotated[bool, typer.Option("--rolling", help="One after the other, while the others serve.")] = False,
    data_dir: DataDir = None,
    admin_url: AdminUrl = None,
    key: AdminKey = None,
) -> None:
    """Start engines anew without a failed request. A replica that is alone gets its successor first."""
    if not rolling:
        raise fail("add --rolling: replicas are restarted one after the other", code=2)
    _ask(_client(data_dir, admin_url, key).operate("restart", {"name": name}, typer.echo))


def reload(data_dir: DataDir = None, admin_url: AdminUrl = None, key: AdminKey = None) -> None:
    """Have a running server read its configuration again: models, replicas, aliases, tenants."""
    _ask(_client(data_dir, admin_url, key).operate("reload", {}, typer.echo))


def _client(data_dir: Path | None, url: str | None, key: str | None) -> AdminClient:
    from stoker.cli.admin_client import AdminClient
    from stoker.config import Config

    folder = Config(data_dir=data_dir and str(data_dir)).data_path
    return AdminClient(folder, url, key)


def _ask(work: Coroutine[Any, Any, T]) -> T:
    from stoker.cli.admin_client import AdminError

    try:
        return asyncio.run(work)
    except AdminError as error:
        raise fail(str(error)) from error
    except KeyboardInterrupt:
        typer.echo("the server goes on with it", err=True)
        raise typer.Exit(130) from None


def _show(found: ServerStatus) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"Stoker {found.version} · up {found.seconds:,.0f} s", highlight=False)
    table = Table("replica", "status", "in flight", "waiting", "restarts", "KV used", "cached tokens", box=None)
    for name, model in found.models.items():
        others = f" ({', '.join(model.aliases)})" if model.aliases else ""
        table.add_row(f"[bold]{name}[/]{others}", model.status)
        for replica, status in model.replicas.items():
            engine = status.engine
            blocks = engine and engine.blocks_free + engine.blocks_cached + engine.blocks_in_use
            table.add_row(
                f"  {replica}",
                " ".join(filter(None, (status.status, status.stage or status.reason))),
                str(status.in_flight),
                str(engine.waiting) if engine else "",
                str(status.restarts),
                f"{engine.blocks_in_use / blocks:.0%}" if engine and blocks else "",
                f"{engine.cached_tokens:,}" if engine else "",
            )
        if model.replayed or model.moved:
            told = f"  {model.replayed} replays ({model.repeated_tokens:,} tokens computed again), "
            table.add_row(told + f"{model.moved} sessions moved ({model.moved_tokens:,})")
    console.print(table)
