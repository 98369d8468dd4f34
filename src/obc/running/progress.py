"""Progress on a terminal: on the first process's, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from obc.running.processes import Group

if TYPE_CHECKING:
    from rich.console import Console


def terminal(group: Group) -> Console | None:
    """The console to draw on, or None where nobody is watching."""
    from rich.console import Console  # a prune in Python without a terminal needs no rich

    console = Console(stderr=True)
    return console if group.rank == 0 and console.is_terminal else None


def bar(batches: Iterable[Any], text: str, group: Group) -> Iterable[Any]:
    """The batches, with a bar that says how many of them are done."""
    console = terminal(group)
    if console is None:
        return batches
    from rich.progress import track

    return track(batches, text, console=console, transient=True)


class Patience:
    """A single line for what should be quick, once it has taken more than so many seconds."""

    def __init__(self, seconds: float = 2.0) -> None:
        self._until = time.monotonic() + seconds

    def say(self, text: str) -> None:
        """Print the line, if it is time for it."""
        if time.monotonic() > self._until:
            self._until = float("inf")
            console = terminal(Group())
            if console is not None:
                console.print(text)
