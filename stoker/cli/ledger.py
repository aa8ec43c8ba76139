"""`stoker ledger`: what the tokens cost, and where a saving comes from."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

import typer

from stoker.cli.output import fail

if TYPE_CHECKING:
    from stoker.ledger.bridge import Bridge

EXAMPLES = """
[bold]Examples[/]

  stoker ledger bridge --example cloudflare-77            a published saving of 77 %, taken apart
  stoker ledger bridge --example cloudflare-77 --hit 0.6  the same if only 60 % of the input had been cached
"""
BAR = 30  # characters for the baseline's whole cost

app = typer.Typer(
    help="What the tokens cost, and where a saving comes from.", no_args_is_help=True, rich_markup_mode="rich"
)


@app.command(epilog=EXAMPLES)
def bridge(
    example: Annotated[str, typer.Option(help="A documented account instead of this server's ledger.", metavar="NAME")],
    hit: Annotated[float | None, typer.Option(help="What if this share of the input had been cached?")] = None,
    output_share: Annotated[float | None, typer.Option(help="What if this share of all tokens were output?")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Split a saving against a baseline into its causes, by Shapley values with their range over all orders."""
    import msgspec

    from stoker.ledger import example as examples
    from stoker.ledger.bridge import BridgeError

    if example not in examples.NAMES:
        raise fail(f"there is no example {example!r}: choose one of {', '.join(examples.NAMES)}", code=2)
    try:
        result = examples.cloudflare_77(_share(hit), _share(output_share))
    except (BridgeError, ValueError, OverflowError) as error:
        raise fail(str(error), code=2) from error
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(result), indent=2))
    else:
        _show(result)


def _share(value: float | None) -> Fraction | None:
    return None if value is None else Fraction(str(value))


def _show(result: Bridge) -> None:
    typer.echo(f"{result.tokens:,} tokens, {result.hit:.1%} of the input cached, {result.output_share:.1%} output")
    typer.echo(f"baseline  ${result.baseline:>14,.2f}   ${result.baseline_per_million:.3f} per million")
    typer.echo(f"actual    ${result.cost:>14,.2f}   ${result.per_million:.3f} per million")
    typer.secho(f"saving    ${result.saving:>14,.2f}   {result.saving_share:.1%} of the baseline", bold=True)
    typer.echo("\nwhere it comes from, in points of the baseline (least to most over all orders)")
    for factor in result.factors:
        bar = "█" * round(abs(factor.share) * BAR)
        colour = "red" if factor.share < 0 else "green"
        numbers = f"{factor.share:>+8.1%}  ({factor.low:+.1%} to {factor.high:+.1%})"
        typer.echo(f"  {factor.name:<13}{numbers:<34}" + typer.style(bar, fg=colour))
