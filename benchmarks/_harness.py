"""What every benchmark shares: fair timing, peak memory, a table and a JSON file."""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, is_dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "torchvision", "transformers", "timm", "ultralytics", "torch-pruning")
# Tables are wider than the 80 columns that rich assumes where there is no terminal.
CONSOLE = Console(width=None if sys.stdout.isatty() else 140)
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Timing:
    """CPU seconds of one contender; `best` is the figure to quote, `median` shows the noise."""

    best: float
    median: float
    runs: int


def race(
    contenders: Mapping[Key, Callable[[], object]], rounds: int = 5, seconds: float = 120.0
) -> dict[Key, Timing]:
    """CPU time of each contender, best of several, taking turns so that all meet the same noise.

    Ends after `rounds`, or early, but not before the second round, when `seconds` are used up.
    CPU time, not wall-clock time: other processes on the machine count less.
    """
    times: dict[Key, list[float]] = {name: [] for name in contenders}
    begin = time.monotonic()
    for turn in range(rounds):
        if turn >= 2 and time.monotonic() - begin > seconds:
            break
        for name, contender in contenders.items():
            gc.collect()  # nobody pays for what the one before left behind
            start = time.process_time()
            result = contender()
            times[name].append(time.process_time() - start)
            del result
    return {n: Timing(min(t), statistics.median(t), len(t)) for n, t in times.items()}


def peak_memory(function: Callable[[], object]) -> int:
    """Bytes by which calling a function raises the process's peak, measured in a forked child.

    Threads do not survive a fork: use it with `torch.set_num_threads(1)`.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        grown = -1
        try:
            before = _peak()
            function()
            grown = _peak() - before
        finally:
            os.write(write, str(grown).encode())
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as answer:
        grown = int(answer.read() or -1)
    os.waitpid(child, 0)
    if grown < 0:
        raise RuntimeError("the measured function failed or was killed")
    return grown


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in Python code that runs for more than so many seconds of CPU time."""

    def stop(signum: int, frame: object) -> None:
        raise TimeoutError(f"not done after {seconds:g} s")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _peak() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def show(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table; the first column is text, the others are numbers."""
    table = Table(title=title, title_justify="left")
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    CONSOLE.print(table)


def spread(numbers: Sequence[float], digits: int = 1) -> str:
    """Mean and standard deviation; of a single number, the number; of none, nothing."""
    if not numbers:
        return ""
    mean = f"{statistics.mean(numbers):.{digits}f}".replace("-", "−")
    return mean + (f" ± {statistics.stdev(numbers):.{digits}f}" if len(numbers) > 1 else "")


def save(name: str, results: Mapping[str, Any]) -> Path:
    """Write results with all that is needed to repeat them; aside first, then renamed."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    aside = path.with_suffix(".tmp")
    aside.write_text(
        json.dumps({"benchmark": name, **_context(), **results}, indent=1, default=_plain)
    )
    os.replace(aside, path)
    CONSOLE.print(f"written to {os.path.relpath(path)}")
    return path


class Cells:
    """Results of a benchmark by key, each with its command and commit, kept as they come.

    What the result file already has need not be run again: a run that was cut short goes on, if
    its protocol (data, the digest of weights) is the same.
    """

    def __init__(self, name: str, protocol: Mapping[str, Any]) -> None:
        self.name, self.protocol = name, protocol
        self.commit = commit()  # of the code that runs, whatever is committed meanwhile
        path = RESULTS / f"{name}.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        for what, value in json.loads(json.dumps(protocol, default=_plain)).items():
            if known.get(what, value) != value:
                sys.exit(f"{path} was measured with {what} {known[what]!r}, not {value!r}: move it")
        self.results: dict[str, dict[str, Any]] = known.get("cells", {})

    def add(self, key: str, result: Mapping[str, Any]) -> None:
        self.results[key] = {**result, "command": command(), "commit": self.commit}
        save(self.name, {**self.protocol, "cells": self.results})


def command() -> str:
    """What was typed to run this benchmark; folders are the reader's own."""
    words = [w if not os.path.isabs(w) else "FOLDER" for w in sys.argv[1:]]
    return " ".join(["python", "-m", _module(), *words])


def commit() -> str:
    """The commit that is being measured."""
    return _git("rev-parse", "--short", "HEAD")


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")


def _context() -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": command(),
        "commit": commit(),
        "uncommitted changes": bool(_git("status", "--porcelain", "--", "src")),
        "machine": {
            "system": platform.platform(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "torch threads": torch.get_num_threads(),
            "python": platform.python_version(),
        },
        "versions": {p: v for p in PACKAGES if (v := _version(p))},
    }


def _module() -> str:
    spec = sys.modules["__main__"].__spec__
    return spec.name.removesuffix(".__main__") if spec else Path(sys.argv[0]).stem


def _git(*words: str) -> str:
    try:
        found = subprocess.run(
            ["git", *words], cwd=RESULTS.parent.parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "")
