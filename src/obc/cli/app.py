"""`obc`: all commands in one application."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from obc.cli import (
    compare,
    data,
    demo,
    doctor,
    eval,
    export,
    frontier,
    prune,
    report,
    run,
    show,
    tune,
)
from obc.cli.output import command

app = typer.Typer(
    name="obc",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Optimal Brain Connection: remove whole channels and heads from trained networks.",
    epilog="Start with: obc demo",
)

command(app, "demo", resumes=True)(demo.demo)
command(app, "show")(show.show)
command(app, "prune", resumes=True)(prune.prune)
command(app, "tune", resumes=True)(tune.tune)
command(app, "run", resumes=True)(run.run)
command(app, "compare", resumes=True)(compare.compare)
command(app, "frontier", resumes=True)(frontier.frontier)
command(app, "eval")(eval.evaluate)
command(app, "export")(export.export)
command(app, "report")(report.report)
command(app, "data")(data.data)
command(app, "doctor")(doctor.doctor)


def _version(asked: bool) -> None:
    if asked:
        try:
            typer.echo(f"obc {version('obc')}")
        except PackageNotFoundError:
            typer.echo("obc, from a checkout")
        raise typer.Exit


@app.callback()
def _options(
    asked: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console entry point."""
    app(prog_name="obc")
