"""An exact upper bound on a drop in accuracy, from the same samples through two models.

Of n samples, `lost` are right before and wrong after, `gained` the other way round; all others
agree, and say only that they do. With probabilities p and q of the two, the drop is δ = p − q, and
T = lost − gained is the sum of n independent values 1, 0, −1 with probabilities p, 1 − p − q, q.
The bound is the smallest Δ at which "δ ≥ Δ" is refuted by an exact test.

The nuisance, how often the models differ, is handled as R. Berger and D. Boos do (P values
maximized over a confidence set for the nuisance parameter, JASA 89, 1994): p + q is at most π, its
Clopper–Pearson limit at error γ, and the P value of Δ is

    γ + max P(T ≤ t; q + Δ, q)    over 0 ≤ q ≤ (π − Δ)/2.

Larger drops need not be looked at: with q fixed, P(T ≤ t) falls as p rises. For the same reason the
maximum over a cell q₁ ≤ q ≤ q₂ is at most P(T ≤ t; q₁ + Δ, q₂), so that finitely many cells give a
bound that holds for all q, not only on a grid.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from obc.planning import binomial

_NUISANCE = 0.1  # the share of the error that is spent on how often the models differ
_CELLS = 128
_PRECISION = 1e-6  # of the bound: a ten-thousandth of a point
_ALIASED = 30.0  # what the window of the distribution leaves out has probability exp(−30)


def drop_at_most(lost: int, gained: int, samples: int, error: float = 0.05) -> float:
    """The upper bound on the drop, as a share; it is below the true drop with probability ≤ error.

    >>> round(drop_at_most(0, 0, 1000), 4), round(drop_at_most(30, 20, 1000), 4)
    (0.0041, 0.0247)
    """
    budget = error * _NUISANCE
    most = binomial.upper(lost + gained, samples, budget)
    estimate = (lost - gained) / samples

    def possible(drop: float) -> bool:
        return p_value(drop, lost - gained, samples, most) + budget > error

    return binomial.crossing(possible, max(estimate, -most), most, _PRECISION)


def p_value(drop: float, difference: int, samples: int, most: float) -> float:
    """max P(T ≤ difference) over all models that differ on a share of at most `most`.

    >>> round(p_value(0.01, 0, 1000, 0.01), 6), round(0.99**1000, 6)  # nothing is gained
    (4.3e-05, 4.3e-05)
    """
    smallest = max(0.0, -drop)  # q, where p = q + drop is not below 0
    largest = (most - drop) / 2
    if largest < smallest:
        return 0.0  # there are no such models
    edges = torch.linspace(smallest, largest, _CELLS + 1, dtype=torch.float64)
    lost, gained = (edges[:-1] + drop).clamp(0, 1), edges[1:].clamp(0, 1)
    return float(_at_most(difference, samples, lost, torch.minimum(gained, 1 - lost)).max())


def _at_most(difference: int, samples: int, lost: Tensor, gained: Tensor) -> Tensor:
    """P(T ≤ difference) for each pair of probabilities, by the Fourier transform of T."""
    mean = samples * (lost - gained)
    variance = samples * float((lost + gained).max())
    # Bernstein's inequality says how far from its mean T can be.
    reach = _ALIASED / 3 + math.sqrt(_ALIASED**2 / 9 + 2 * _ALIASED * variance)
    low = max(-samples, math.floor(float(mean.min()) - reach))
    high = min(samples, math.ceil(float(mean.max()) + reach))
    if difference >= high:
        return torch.ones_like(lost)
    if difference < low:
        return torch.zeros_like(lost)
    size = high - low + 1
    angle = 2 * math.pi * torch.arange(size // 2 + 1, dtype=torch.float64) / size
    turn = torch.polar(torch.ones_like(angle), angle)
    lost, gained = lost[:, None], gained[:, None]
    one = gained * turn.conj() + (1 - lost - gained) + lost * turn
    whole = torch.polar(one.abs() ** samples, samples * one.angle() - low * angle)
    density = torch.fft.irfft(whole.conj(), n=size, dim=1)
    tail: Tensor = density[:, : difference - low + 1].sum(1)
    return tail.clamp(0, 1)
