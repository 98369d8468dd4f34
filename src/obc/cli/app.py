"""`obc`: all commands in one application."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from obc.cli import compare, demo, doctor, look, share, work
from obc.cli.output import command

app = typer.Typer(
    name="obc",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Optimal Brain Connection: remove whole channels and heads from trained networks.",
    epilog="Start with: obc demo",
)

command(app, "demo", resumes=True)(demo.demo)
command(app, "show")(look.show)
command(app, "prune", resumes=True)(work.prune)
command(app, "tune", resumes=True)(work.tune)
command(app, "run", resumes=True)(work.run)
command(app, "compare", resumes=True)(compare.compare)
command(app, "eval")(look.evaluate)
command(app, "export")(share.export)
command(app, "report")(share.report)
command(app, "data")(share.data)
command(app, "bench")(share.bench)
command(app, "doctor")(doctor.doctor)


def _version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"obc {version('obc')}")
        except PackageNotFoundError:
            typer.echo("obc, from a checkout")
        raise typer.Exit


@app.callback()
def _options(
    wanted: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console entry point."""
    app(prog_name="obc")
