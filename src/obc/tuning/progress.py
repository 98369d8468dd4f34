"""A progress bar with loss, metric, samples per second and time left; silent off a terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """One bar for a whole run."""

    def __init__(self, total: int, done: int, show: bool) -> None:
        console = Console(stderr=True)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=2,
            disable=not (show and console.is_terminal),
        )
        self._task = self._progress.add_task("tuning", total=total, completed=done, text="")
        self._samples, self._since, self.quality = 0, time.perf_counter(), ""

    def __enter__(self) -> Bar:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def step(self, loss: float, samples: int) -> None:
        """One step was made on so many samples."""
        self._samples += samples
        if self._progress.disable:
            return
        text = f"loss {loss:.4f} {self.quality} {self.rate:.0f} samples/s"
        self._progress.update(self._task, advance=1, text=text)

    @property
    def rate(self) -> float:
        """Samples per second since this process began."""
        return self._samples / max(time.perf_counter() - self._since, 1e-9)
