"""`stoker check`: what a model takes and whether it fits, from its configuration and headers, before anything loads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.output import fail

if TYPE_CHECKING:
    from stoker.engine.capacity import Report

EXAMPLES = """
[bold]Examples[/]

  stoker check DIR                              is this folder a model that can be served, and how large is it?
  stoker check DIR --tp 8 --hardware h200       and does it fit on eight of these?
  stoker check --example kimi-k2.5 --tp 8 --cp 8 --hardware h200    a published model, without its files
  stoker check --example glm-5 --json           the same for a program; exit status 1 when something is wrong
"""
SHOWN = 5  # names of a list that a person is shown


def check(
    model: Annotated[
        str | None, typer.Argument(metavar="PATH", help="A model folder, a .gguf file, or demo.", show_default=False)
    ] = None,
    example: Annotated[
        str | None, typer.Option(help="A published model instead: kimi-k2.5, kimi-linear or glm-5.", metavar="NAME")
    ] = None,
    tp: Annotated[int, typer.Option(help="Ranks that heads and widths are cut for.", min=1, max=1024)] = 1,
    ep: Annotated[int, typer.Option(help="Ranks that experts are dealt to.", min=1, max=1024)] = 1,
    cp: Annotated[int, typer.Option(help="Ranks that latent caches are cut for.", min=1, max=1024)] = 1,
    hardware: Annotated[
        str | None, typer.Option(help="What each rank runs on: h100, h200 or b200.", metavar="NAME")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a model's files against its configuration, and count what it takes. Reads headers, no weights."""
    import msgspec

    from stoker.engine import capacity
    from stoker.models import examples
    from stoker.models.shards import Ranks
    from stoker.models.source import ModelError

    if (model is None) == (example is None):
        raise fail("give the PATH of a model, or --example NAME", code=2)
    if example is not None and example not in examples.names():
        raise fail(f"there is no example {example!r}: choose one of {', '.join(examples.names())}", code=2)
    if hardware is not None and hardware not in capacity.HARDWARE:
        raise fail(f"the hardware {hardware!r} is not known: choose one of {', '.join(capacity.HARDWARE)}", code=2)
    ranks = Ranks(tp, ep, cp)
    try:
        if example is not None:
            report = capacity.check_example(example, ranks, hardware)
        else:
            report = capacity.check_model(model or "", ranks, hardware)
    except ModelError as error:
        raise fail(str(error)) from error
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        _show(report)
    raise typer.Exit(0 if report.ok else 1)


def _show(report: Report) -> None:
    per_token = report.kv_bytes_per_token
    rows = [
        ("model", f"{report.model} ({report.model_type})"),
        ("weights", f"{report.weights_gib:,.2f} GiB in {report.tensors:,} tensors"),
        ("per rank", f"{report.bytes_per_rank / 2**30:,.2f} GiB of weights on each of {report.ranks}"),
        ("KV cache", "not known" if per_token is None else f"{per_token:,} bytes a token, in bfloat16"),
        ("context", "not known" if report.context is None else f"{report.context:,} tokens"),
    ]
    if report.kv_bytes_per_token_and_rank not in (None, per_token):
        rows.insert(4, ("", f"{report.kv_bytes_per_token_and_rank:,} bytes a token on each rank"))
    if report.state_bytes_per_sequence:
        rows.insert(-1, ("states", f"{report.state_bytes_per_sequence:,} bytes a sequence"))
    if report.mtp_layers:
        count = f"{report.mtp_layers} layer{'s' * (report.mtp_layers > 1)}"
        rows.append(("MTP", f"{count}, {report.mtp_gib:,.2f} GiB, not loaded to serve"))
    if report.hardware is not None:
        budget = "not known" if report.kv_budget_tokens is None else f"{report.kv_budget_tokens:,} tokens"
        rows.append(("KV budget", f"{budget}, on {report.ranks} x {report.hardware}"))
        rows.append(("fits", "yes, with at least one whole context" if report.fits else "no"))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:{width}}  {value}")
    for what, found in (
        ("missing", report.missing),
        ("unexpected", report.unexpected),
        ("misshapen", report.misshapen),
    ):
        _list(f"{what} tensors", found)
    _list("problems", report.problems)


def _list(what: str, found: Sequence[str] | None) -> None:
    if found is None:
        typer.secho(f"! {what}: not known without the graph", fg="yellow")
    elif not found:
        typer.echo(f"{typer.style('✓', fg='green')} no {what}")
    else:
        typer.echo(f"{typer.style('✗', fg='red')} {len(found):,} {what}")
        for line in found[:SHOWN]:
            typer.echo(f"    {line}")
        if len(found) > SHOWN:
            typer.secho(f"    and {len(found) - SHOWN:,} more (all of them with --json)", dim=True)
