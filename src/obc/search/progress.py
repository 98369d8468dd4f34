"""The line that shows how far a run has come: on a terminal, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from obc.plans.plan import PlanCost
from obc.running.processes import Group
from obc.running.progress import terminal


class Progress:
    """A live line with step, cost, seconds per step and time left."""

    def __init__(self, group: Group) -> None:
        self._console = terminal(group)
        self._live: Any = None
        self._start, self._steps, self._from = 0.0, 0, 0.0

    @contextmanager
    def shown(self) -> Iterator[None]:
        self._start = time.monotonic()
        if self._console is None:
            yield
            return
        from rich.live import Live

        with Live("planning", console=self._console, transient=True) as self._live:
            yield

    def update(self, step: int, cost: PlanCost, done: float) -> None:
        """`done` is how much of the way to the last target is behind us, from 0 to 1."""
        if not self._steps:
            self._from = done
        self._steps += 1
        if self._live is not None:
            self._live.update(self.line(step, cost, done, time.monotonic() - self._start))

    def say(self, text: str) -> None:
        """What else takes time."""
        if self._live is not None:
            self._live.update(text)

    def line(self, step: int, cost: PlanCost, done: float, elapsed: float) -> str:
        each = elapsed / max(self._steps, 1)
        text = f"step {step}  {_short(cost.macs)} MACs  {_short(cost.params)} parameters"
        if cost.seconds is not None:
            text += f"  {cost.seconds * 1e3:.3g} ms"
        text += f"  {each:.2g} s a step"
        moved = done - self._from
        if self._steps > 1 and moved > 0:
            left = (elapsed - each) * (1 - done) / moved
            text += f"  {_clock(left)} left"
        return text


def _short(number: int) -> str:
    """
    >>> _short(126_000_000), _short(853_018)
    ('126 M', '853 k')
    """
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return str(number)


def _clock(seconds: float) -> str:
    """
    >>> _clock(75), _clock(3700)
    ('1:15', '1:01:40')
    """
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours}:{minutes:02}:{whole % 60:02}"
    return f"{minutes}:{whole % 60:02}"
