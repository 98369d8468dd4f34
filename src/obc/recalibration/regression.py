"""Ridge regression towards the weights as they are, from sums over rows; held-out rows decide.

For rows u with residuals r = t − (W₀u + b₀), the change of the weight and of the bias is

    Δ = Cov(r, u) (Cov(u) + ρ tr(Cov u)/q · I)⁻¹,    c = mean(r) − Δ mean(u),

q the width of u; without a bias to put c into, moments about zero stand for the covariances. The
same sums over rows that the regression has not seen give the error of any (Δ, c) there:

    Σ |r − Δu − c|² = Σ|r|² − 2⟨Δ, Σruᵀ⟩ + ⟨Δ Σuuᵀ, Δ⟩ − 2⟨c, Σr⟩ + 2⟨c, Δ Σu⟩ + n|c|².

Where a weight has many outputs, ρ is chosen by 64 random sums of them, S r with independent normal
S: in the mean, its error is that of r, and a ρ costs little more than its factorisation. All
outputs decide whether the fit is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from obc.running.processes import Group

# With seven rows for each input, as on a decoder, 0.3 does best; with a hundred, any below 0.01.
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 0.3, 1.0, 3.0)
_START = 1e-1
SAFE = (1e-2,)  # hardly behind the best, however few rows there are
_SUMS = 64  # random sums of outputs, to look for ρ
_BLOCK = 256  # below this width, a symmetric product is taken at once


@dataclass
class Moments:
    """Sums over rows, in float64: weights, Σu, Σr, Σuuᵀ, Σruᵀ, Σr², and Σt, Σt² of the targets.

    By group: u is [groups, rows, inputs], r and t are [groups, rows, outputs]. A row counts once,
    unless it has a weight; `rows` is how many there were, `count` the sum of their weights.
    """

    rows: Tensor
    count: Tensor
    u: Tensor
    r: Tensor
    uu: Tensor
    ru: Tensor
    rr: Tensor
    t: Tensor
    tt: Tensor

    @classmethod
    def zero(cls, groups: int, outputs: int, inputs: int, device: torch.device) -> Moments:
        """Of no rows."""
        shapes = [
            *((), (), (groups, inputs), (groups, outputs), (groups, inputs, inputs)),
            *((groups, outputs, inputs), (groups, outputs), (groups, outputs), (groups, outputs)),
        ]
        return cls(*(torch.zeros(s, dtype=torch.float64, device=device) for s in shapes))

    def add(self, u: Tensor, r: Tensor, t: Tensor, weights: Tensor | None = None) -> None:
        """Take rows in, of float32 or float64, each as often as its weight says.

        Products are taken of v = u − c, c the mean of these rows, so that float32 is enough for
        covariances however far the mean is from zero: Σuuᵀ = Σvvᵀ + c(Σu)ᵀ + (Σv)cᵀ.
        """
        exact = torch.float64
        root = None if weights is None else weights.sqrt().unsqueeze(-1)
        count = u.shape[1] if weights is None else weights.sum(dtype=exact)
        mean = u.mean(1, keepdim=True)
        v = u - mean
        if root is not None:
            v, r, t = v * root, r * root, t * root

        def total(x: Tensor) -> Tensor:
            return (x if root is None else x * root).sum(1, True, dtype=exact)

        c, sum_v, sum_r = mean.to(exact), total(v), total(r)
        sum_u = sum_v + count * c
        self.rows += u.shape[1]
        self.count += count
        self.u += sum_u.squeeze(1)
        self.r += sum_r.squeeze(1)
        self.uu += gram(v)
        self.uu.baddbmm_(torch.cat([c, sum_v], 1).mT, torch.cat([sum_u, c], 1))
        self.ru += r.mT @ v
        self.ru.baddbmm_(sum_r.mT, c)
        self.rr += r.square().sum(1, dtype=exact)
        self.t += total(t).squeeze(1)
        self.tt += t.square().sum(1, dtype=exact)

    def mixed(self, sums: Tensor) -> Moments:
        """The same of S r in place of r, S [sums, outputs] of each group; Σ|r|² is left at zero.

        That is the same for every change, so it does not tell which is best.
        """
        r, ru = (sums @ self.r.unsqueeze(-1)).squeeze(-1), sums @ self.ru
        return Moments(self.rows, self.count, self.u, r, self.uu, ru, *(torch.zeros_like(r),) * 3)

    def over(self, group: Group) -> Moments:
        """The sums over all processes."""
        return Moments(*(group.summed(value) for value in vars(self).values()))

    @property
    def _divisor(self) -> Tensor:
        return torch.where(self.count > 0, self.count, 1.0)

    def means(self) -> tuple[Tensor, ...]:
        """Of u, r, uuᵀ and ruᵀ."""
        return tuple(x / self._divisor for x in (self.u, self.r, self.uu, self.ru))

    @property
    def spread(self) -> Tensor:
        """Σ|t − mean(t)|² by output: what an error is measured against."""
        return self.tt - self.t.square() / self._divisor

    def error(self, change: Change) -> Tensor:
        """Σ|r − Δu − c|² by output, [groups, outputs]."""
        delta, c = change.weight, change.bias
        both = (delta @ self.uu - 2 * self.ru).mul(delta).sum(-1)
        shift = (delta @ self.u.unsqueeze(-1)).squeeze(-1) - self.r
        return self.rr + both + c * (2 * shift + self.count * c)


@dataclass(frozen=True)
class Change:
    """What is added to a weight [groups, outputs, inputs] and to a bias [groups, outputs]."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def none(cls, moments: Moments) -> Change:
        """Everything as it is."""
        return cls(torch.zeros_like(moments.ru), torch.zeros_like(moments.r))


def gram(v: Tensor) -> Tensor:
    """vᵀv, by halves, since the lower triangle is the upper one's: little more than half the work.

    >>> v = torch.randn(2, 9, 600).double()
    >>> bool(torch.allclose(gram(v), v.mT @ v, atol=1e-12))
    True
    """
    width = v.shape[-1]
    if width < _BLOCK:
        return v.mT @ v
    left, right = v.split([width // 2, width - width // 2], -1)
    corner = left.mT @ right
    return torch.cat(
        [torch.cat([gram(left), corner], -1), torch.cat([corner.mT, gram(right)], -1)], -2
    )


def solve(moments: Moments, ridge: float, intercept: bool) -> Change | None:
    """The regression; None where rows do not determine it.

    >>> u, noise = torch.randn(1, 9, 2).double(), torch.zeros(1, 9, 1).double()
    >>> m = Moments.zero(1, 1, 2, torch.device("cpu"))
    >>> m.add(u, u @ torch.tensor([[[3.0], [4.0]]]).double() + 5, noise)
    >>> change = solve(m, 1e-9, True)
    >>> [round(x, 3) for x in (*change.weight.flatten().tolist(), change.bias.item())]
    [3.0, 4.0, 5.0]
    """
    mean_u, mean_r, square, cross = moments.means()
    width = mean_u.shape[-1]
    if intercept:  # in place: a square is the largest thing that a recalibration holds
        square.baddbmm_(mean_u.unsqueeze(-1), mean_u.unsqueeze(-2), alpha=-1)
        cross.baddbmm_(mean_r.unsqueeze(-1), mean_u.unsqueeze(-2), alpha=-1)
    size = square.diagonal(dim1=-2, dim2=-1).sum(-1) / width
    # A group that never reads anything but zeros keeps its weights.
    ridges = torch.where(size > 0, ridge * size, 1.0)
    square.diagonal(dim1=-2, dim2=-1).add_(ridges.unsqueeze(-1))
    factor, failed = torch.linalg.cholesky_ex(square)
    del square
    if bool(failed.any()):
        return None
    delta = torch.cholesky_solve(cross.mT, factor).mT
    bias = mean_r - (delta @ mean_u.unsqueeze(-1)).squeeze(-1)
    return Change(delta, bias if intercept else torch.zeros_like(bias))


def choose(
    fit: Moments, held: Moments, intercept: bool, scale: Tensor, ridges: Sequence[float]
) -> tuple[Change | None, float | None, float]:
    """The change with the lowest held-out error, its ridge, and that error.

    `scale` weighs outputs, as the norm behind them does. None when no change beats none at all.
    """
    weights = scale.square()
    best: tuple[Change | None, float | None, float] = (
        None, None, float((held.rr * weights).sum()),
    )  # fmt: skip
    if scale.shape[1] > _SUMS and len(ridges) > 1:
        ridges = [lowest(ridges, _error_of_sums(fit, held, intercept, scale))]

    def error(ridge: float) -> float:
        nonlocal best
        change = solve(fit, ridge, intercept)
        if change is None:
            return math.inf
        error = float((held.error(change) * weights).sum())
        if error < best[2]:
            best = (change, ridge, error)
        return error

    lowest(ridges, error)
    return best


def lowest(ridges: Sequence[float], error: Callable[[float], float]) -> float:
    """The ridge of the lowest error, by a walk from 0.1 upwards or downwards.

    A stronger ridge fits less and holds better, so the error falls and then rises: the walk ends
    where it rises.

    >>> asked = []
    >>> lowest(RIDGES, lambda ridge: asked.append(ridge) or abs(ridge - 1e-3))
    0.001
    >>> asked
    [0.1, 0.3, 0.01, 0.001, 0.0001]
    """
    start = next((i for i, ridge in enumerate(ridges) if ridge >= _START), len(ridges) - 1)
    lowest, at = error(ridges[start]), start
    for step in (1, -1):
        while 0 <= at + step < len(ridges) and (next_error := error(ridges[at + step])) < lowest:
            lowest, at = next_error, at + step
        if at != start:
            break
    return ridges[at]


def _error_of_sums(
    fit: Moments, held: Moments, intercept: bool, scale: Tensor
) -> Callable[[float], float]:
    """The held-out error of a ridge for random sums of outputs, up to a constant."""
    groups, outputs = scale.shape
    generator = torch.Generator().manual_seed(outputs)
    sums = torch.randn(groups, _SUMS, outputs, generator=generator, dtype=torch.float64)
    sums = sums.to(scale.device) * scale.unsqueeze(1)
    fit, held = fit.mixed(sums), held.mixed(sums)

    def error(ridge: float) -> float:
        change = solve(fit, ridge, intercept)
        return math.inf if change is None else float(held.error(change).sum())

    return error
