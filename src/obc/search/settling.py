"""Predicted seconds held against a clock where a run has landed; where they differ, land again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from obc.costs.fitted import Fitted
from obc.costs.targets import Latency, Target

if TYPE_CHECKING:
    from obc.search.algorithm import Run

_CLOSE = 0.015  # of the predicted seconds
_TIMES = 4


def settle(run: Run, target: Target, feasible: Sequence[int]) -> None:
    """Time the working copy beside the whole model, correct the prediction by it, land again.

    The cost model is the same for all widths, but a cut's neighbours are off by what the cut is
    off, so two or three rounds are enough. The plan's last step has the measured seconds.
    """
    price = run.reach.price
    if not isinstance(price, Fitted) or not isinstance(target, Latency) or not run.order:
        return
    first = 0.0
    for turn in range(_TIMES):
        seconds, predicted = price.candidates.of(run.work.model), run.value()
        first = first or seconds / predicted
        if abs(seconds / predicted - 1) <= _CLOSE or turn == _TIMES - 1:
            break
        price.correct(seconds / predicted)
        run.place(target, 0, feasible)
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
