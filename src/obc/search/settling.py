"""Predicted seconds held against a clock where a run has landed; where they differ, land again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from obc.costs.fitted import Fitted
from obc.costs.targets import Latency, Target

if TYPE_CHECKING:
    from obc.search.algorithm import Run

_CLOSE = 0.015  # of the seconds asked for
_TIMES = 8


def settle(run: Run, target: Target, feasible: Sequence[int]) -> None:
    """Time the working copy beside the whole model, correct the prediction by it, land again.

    Each landing has other channels and is off by an error of its own, so the prediction is
    corrected by what all of them were off in the mean; of those that were timed, the one nearest
    to the target stays. The plan's last step has the measured seconds.
    """
    price = run.reach.price
    if not isinstance(price, Fitted) or not isinstance(target, Latency) or not run.order:
        return
    limit = run.reach.limit(target)
    factor, landings = 1.0, list[tuple[float, float]]()  # measured seconds, by what factor landed
    ratios: list[float] = []  # measured to predicted, as first fitted
    while True:
        seconds = price.candidates.of(run.work.model)
        ratios.append(factor * seconds / run.value())
        landings.append((seconds, factor))
        near = [abs(s / limit - 1) for s, _ in landings]
        if near[-1] <= _CLOSE:
            break
        over = len(landings) == _TIMES
        seconds, by = landings[near.index(min(near))]
        new = by if over else statistics.geometric_mean(ratios)
        price.correct(new / factor)
        factor = new
        run.place(target, 0, feasible)
        if over:
            break
    first = ratios[0]
    last = run.state.history[-1]
    after = last.after.model_copy(update={"seconds": seconds})
    run.state.history[-1] = last.model_copy(update={"after": after})
    whole, off = run.reach.whole, abs(1 / first - 1)
    run.clock = [
        f"in {target.runtime}: {whole * 1e3:.3g} ms → {seconds * 1e3:.3g} ms measured, "
        f"{whole / seconds:.3f}x; the first prediction was off by {off:.1%}",
        f"cost model: {price.error:.1%} off in the middle over cuts it had not seen; widths at "
        f"multiples of {price.multiple}",
    ]
