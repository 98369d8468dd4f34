"""An approximate upper bound on any loss of quality, by drawing the samples again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

DRAWS = 2000
FEWEST = 20  # with fewer samples, drawing them again says nothing of those not seen


def upper(
    loss: Callable[[Sequence[Tensor]], float], rows: Sequence[Tensor], error: float = 0.05
) -> float:
    """The quantile 1 − error of a loss over samples drawn again with replacement.

    `rows` has a tensor of outcomes for each model, in the same order of samples; a draw takes the
    same samples of all, so that what they share cancels. The percentile interval of B. Efron and
    R. Tibshirani, An Introduction to the Bootstrap (1993): approximate, and short for few samples.

    >>> before, after = torch.randn(2, 400, 1).double()
    >>> mean = lambda pair: float(pair[1].mean() - pair[0].mean())
    >>> upper(mean, [before, after]) > mean([before, after])
    True
    >>> upper(mean, [before, before + 1])
    1.0
    """
    count = len(rows[0])
    generator = torch.Generator().manual_seed(0)
    losses = torch.empty(DRAWS, dtype=torch.float64)
    for i in range(DRAWS):
        drawn = torch.randint(count, (count,), generator=generator)
        losses[i] = loss([of_model[drawn] for of_model in rows])
    return float(losses.quantile(1 - error, interpolation="higher"))
