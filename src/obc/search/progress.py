"""The line that shows how far a run has come: on a terminal, and nowhere else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from obc.plans.plan import PlanCost
from obc.running.processes import Group
from obc.running.progress import terminal
from obc.search.way import Way, clock

_RECENT = 8  # steps that say how long one takes now
_FEW = 4  # with fewer steps, nothing is said of how their time falls with the MACs


class Progress:
    """A live line with step, cost, seconds per step and time left."""

    def __init__(self, group: Group) -> None:
        self._console = terminal(group)
        self._live: Any = None
        self._last = 0.0
        self._steps: list[tuple[int, float]] = []  # MACs after it, and seconds

    @contextmanager
    def shown(self) -> Iterator[None]:
        self._last = time.monotonic()
        if self._console is None:
            yield
            return
        from rich.live import Live

        with Live("planning", console=self._console, transient=True) as self._live:
            yield

    def update(self, step: int, cost: PlanCost, way: Callable[[], Way] | None) -> None:
        """After a step; `way` is what is ahead, where that is known."""
        now = time.monotonic()
        self._steps.append((cost.macs, now - self._last))
        self._last = now
        if self._live is not None:
            self._live.update(self.line(step, cost, way() if way is not None else None))

    def say(self, text: str) -> None:
        """What else takes time."""
        if self._live is not None:
            self._live.update(text)

    def line(self, step: int, cost: PlanCost, way: Way | None) -> str:
        text = f"step {step}  {_short(cost.macs)} MACs  {_short(cost.params)} parameters"
        if cost.seconds is not None:
            text += f"  {cost.seconds * 1e3:.3g} ms"
        text += f"  {self._each:.2g} s a step"
        if way is not None and len(self._steps) > 1:  # the first step warms up
            text += f"  {clock(self.left(way))} left"
        return text

    @property
    def _each(self) -> float:
        recent = [seconds for _, seconds in self._steps[1:][-_RECENT:] or self._steps]
        return sum(recent) / len(recent)

    def left(self, way: Way) -> float:
        """Seconds for the steps ahead: as long as the last ones, less what they have shown to gain.

        Seconds are fitted to MACs by a line over all steps but the first; part of a step does not
        become cheaper with the model, and how much that is differs from run to run.
        """
        macs, seconds = np.array(self._steps[1:], dtype=np.float64).T
        slope = 0.0
        if len(macs) >= _FEW and np.ptp(macs) > 0:
            slope = max(0.0, float(np.polyfit(macs, seconds, 1)[0]))
        recent = float(macs[-_RECENT:].mean())
        gain = slope * max(0.0, recent - way.share * float(macs[-1]))
        return way.steps * max(self._each - gain, 0.1 * self._each)


def _short(number: int) -> str:
    """
    >>> _short(126_000_000), _short(853_018)
    ('126 M', '853 k')
    """
    for size, name in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {name}"
    return str(number)
