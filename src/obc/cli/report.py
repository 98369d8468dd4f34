"""`obc report`: the page of a run, drawn again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from obc.cli.output import Output, Result
from obc.reporting.page import report as draw


def report(
    out: Output,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder of a run.")],
) -> Result:
    """Draw the report of a run again: one HTML page that needs nothing but itself.

    Example: obc report runs/demo
    """
    page = draw(folder)
    out.say(str(page))
    return {"report": page}
