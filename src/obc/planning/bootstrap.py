"""An approximate upper bound on any loss of quality, by drawing the samples again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

DRAWS = 2000
FEWEST = 20  # with fewer samples, drawing them again says nothing of those not seen
_AT_ONCE = 100


def upper(
    loss: Callable[[Sequence[Tensor]], float], rows: Sequence[Tensor], error: float = 0.05
) -> float:
    """The quantile 1 − error of a loss over samples drawn again with replacement.

    `rows` has a tensor of outcomes, [samples, k], for each model, in the same order of samples. A
    draw takes the same samples of all models, so that what they share cancels; `loss` gets the sum
    of the outcomes drawn for each of them. The percentile interval of B. Efron and R. Tibshirani,
    An Introduction to the Bootstrap (1993): approximate, and short for few samples.

    >>> before, after = torch.randn(2, 400, 1).double()
    >>> fall = lambda totals: float(totals[1] - totals[0]) / 400
    >>> upper(fall, [before, after]) > fall([before.sum(0), after.sum(0)])
    True
    >>> round(upper(fall, [before, before + 1]), 9)
    1.0
    """
    count = len(rows[0])
    generator = torch.Generator().manual_seed(0)
    losses: list[float] = []
    for _ in range(DRAWS // _AT_ONCE):
        drawn = torch.randint(count, (_AT_ONCE, count), generator=generator)
        times = torch.zeros(_AT_ONCE, count, dtype=torch.float64)
        times.scatter_add_(1, drawn, torch.ones_like(times))
        totals = [times @ of_model.double() for of_model in rows]
        losses += [loss([total[i] for total in totals]) for i in range(_AT_ONCE)]
    values = torch.tensor(losses, dtype=torch.float64)
    return float(values.quantile(1 - error, interpolation="higher"))
