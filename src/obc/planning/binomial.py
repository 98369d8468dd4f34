"""Exact confidence limits of a share, from how often something happened."""

from __future__ import annotations

from collections.abc import Callable

import torch


def at_most(count: int, trials: int, share: float) -> float:
    """P(X ≤ count) for X ~ Binomial(trials, share).

    >>> round(at_most(1, 3, 0.5), 12)
    0.5
    """
    if count >= trials or share <= 0:
        return 1.0
    if count < 0 or share >= 1:
        return 0.0
    k = torch.arange(count + 1, dtype=torch.float64)
    n, p = torch.tensor([trials, share], dtype=torch.float64)
    ways = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(n - k + 1)
    logs = ways + k * p.log() + (n - k) * torch.log1p(-p)
    return min(1.0, float(logs.logsumexp(0).exp()))


def upper(count: int, trials: int, error: float) -> float:
    """The largest share that `count` or fewer would not contradict: P(X ≤ count) = error.

    C. Clopper and E. Pearson, The use of confidence or fiducial limits illustrated in the case of
    the binomial, Biometrika 26 (1934): the true share is above it at most so often as `error` says.

    >>> round(upper(0, 100, 0.05), 4)  # the rule of three
    0.0295
    """
    if count >= trials:
        return 1.0
    return crossing(lambda share: at_most(count, trials, share) > error, count / trials, 1.0)


def lower(count: int, trials: int, error: float) -> float:
    """The smallest share that `count` or more would not contradict.

    >>> round(lower(100, 100, 0.05), 4)
    0.9705
    """
    return 1 - upper(trials - count, trials, error)


def crossing(
    holds: Callable[[float], bool], low: float, high: float, precision: float = 1e-12
) -> float:
    """The smallest number known to fail, by halving, where what holds below fails above."""
    while high - low > precision:
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high
