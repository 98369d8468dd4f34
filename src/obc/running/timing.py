"""How long something takes: best and middle of many runs, taking turns, with the device waited for.

What else the machine does can only slow a run down, and it slows neighbours alike; so rivals take
turns, and the best of many is the least disturbed. A single thread of a processor is timed by the
processor's clock, which stands still while others have their turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from obc.running.forward import arguments, evaluating
from obc.running.randomness import kept

_WARM_UP = 3


def race(
    runs: Sequence[Callable[[], object]],
    *,
    turns: int = 10,
    seconds: float = 0.2,
    device: torch.device | None = None,
) -> list[list[float]]:
    """Seconds of every turn of every run: of the processor where one thread does all the work.

    Args:
        runs: What is timed; in each turn all of them run once, in this order.
        turns: How many turns there are at least.
        seconds: How long the first of them is measured at least, waiting included.
        device: The accelerator whose work is waited for, if one does the work.

    >>> a, b = race([lambda: sum(range(10)), lambda: sum(range(9999))], turns=5, seconds=0)
    >>> len(a), min(a) < min(b)
    (5, True)
    """
    times: list[list[float]] = [[] for _ in runs]
    alone = torch.get_num_threads() == 1 and (device is None or device.type == "cpu")
    clock = time.process_time if alone else time.perf_counter
    spent = 0.0
    while len(times[0]) < turns or spent < seconds:
        begin = time.perf_counter()
        for run, taken in zip(runs, times, strict=True):
            _wait(device)
            start = clock()
            run()
            _wait(device)
            taken.append(clock() - start)
        spent += (time.perf_counter() - begin) / len(runs)
    return times


def relative(times: Sequence[float], to: Sequence[float]) -> float:
    """What one run takes for each second of another: the median over the turns of a race.

    Neighbours in time are disturbed alike, also where nothing ever runs undisturbed.

    >>> relative([1.0, 2.0, 1.0], to=[2.0, 4.0, 9.0])
    0.5
    """
    return statistics.median(own / other for own, other in zip(times, to, strict=True))


@torch.no_grad()
def race_models(
    models: Sequence[nn.Module], example: Any, *, turns: int = 10, seconds: float = 0.2
) -> list[list[float]]:
    """Seconds of every forward pass of every model in eval mode, after a warm-up."""
    args, kwargs = arguments(example)
    with ExitStack() as modes:
        modes.enter_context(kept())
        for model in models:
            modes.enter_context(evaluating(model))
            for _ in range(_WARM_UP):
                model(*args, **kwargs)
        runs = [lambda model=model: model(*args, **kwargs) for model in models]
        return race(runs, turns=turns, seconds=seconds, device=device_of(models[0]))


def device_of(model: nn.Module) -> torch.device | None:
    """Where a model works, if it has parameters that say so."""
    return next((p.device for p in model.parameters()), None)


def _wait(device: torch.device | None) -> None:
    """Accelerators work behind the back of Python; a clock has to wait for them."""
    if device is not None and device.type not in ("cpu", "meta"):
        torch.accelerator.synchronize(device)
