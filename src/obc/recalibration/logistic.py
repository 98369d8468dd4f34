"""Logistic regression towards the weights as they are, for outputs that only a sigmoid reads.

Behind a sigmoid, a logit of −9 or −15 is the same: nothing there. Least squares of logits spends
itself on such positions, which in a detector are nearly all. What counts is the probability
p = σ(t) of the original, so the divergence of p from p̂ = σ((W₀ + Δ)u + b₀ + c) is made least,

    Σ KL(p ‖ p̂) + λ/2 |Δ|² = Σ (log(1 + eᶻ) − p z) + λ/2 |Δ|² + const,   z = (W₀ + Δ)u + b₀ + c,

which is convex in Δ and c. Newton's method solves it, output by output, with gradient Σ (p̂ − p)u
and curvature Σ p̂(1 − p̂)uuᵀ. λ is ρ times the mean over the inputs of Σ p(1 − p)u²; rows that the
regression has not seen choose ρ, by their divergence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from obc.recalibration.forms import Form
from obc.recalibration.regression import Change, lowest
from obc.recalibration.rows import ROWS
from obc.running.processes import Group

_ROWS = 1 << 17  # of one weight: those that matter are rare
_WORK = 1 << 36  # products of one step of Newton's method that more rows than usual may cost
_STEPS = 30  # of Newton's method at most
_HALVINGS = 10  # of one step, until it lowers the divergence
_CLOSE = 1e-9  # of the divergence: what a last step may still gain
_CHUNK = 1 << 24  # numbers in one product


class Table:
    """Rows of one weight as they come: what it reads, and the original's logits there."""

    def __init__(self, groups: int, outputs: int, inputs: int, device: torch.device) -> None:
        self.rows = max(1, _CHUNK // (groups * (inputs + outputs)))
        empty = [torch.zeros(groups, 0, width, device=device) for width in (inputs, outputs)]
        self._taken = [tuple(empty)]

    def take(self, u: Tensor, r: Tensor, t: Tensor, weights: Tensor | None) -> None:
        """Take rows u [groups, rows, inputs] in, with targets t; divergences need nothing else."""
        self._taken.append((u, t))

    def whole(self) -> tuple[Tensor, Tensor]:
        """All rows and targets, in float64."""
        u, t = (torch.cat(parts, 1).double() for parts in zip(*self._taken, strict=True))
        return u, t


def most_rows(form: Form) -> int:
    """How many rows a weight may have: 131,072, or fewer where a step would take long."""
    cost = form.groups * form.outputs * form.inputs**2
    return max(ROWS, min(_ROWS, _WORK // cost))


class Logistic:
    """The regression of one weight W₀ [groups, outputs, inputs] with bias b₀ [groups, outputs]."""

    def __init__(
        self, u: Tensor, t: Tensor, weight: Tensor, bias: Tensor, intercept: bool, group: Group
    ) -> None:
        self._group, self._intercept = group, intercept
        one = torch.ones_like(u[..., :1]) if intercept else u[..., :0]
        self._u = torch.cat([u, one], -1)
        self._p = torch.sigmoid(t)
        self._base = u @ weight.mT + bias.unsqueeze(1)
        self._least = self._cross_entropy(t)
        self.rows = int(group.summed(torch.tensor(float(u.shape[1]))))
        self._width = u.shape[-1]

    def _cross_entropy(self, z: Tensor) -> Tensor:
        """By output, over the rows of all processes."""
        return self._group.summed((functional.softplus(z) - self._p * z).sum(1))

    def divergence(self, change: Change | None = None) -> Tensor:
        """Σ KL(p ‖ p̂) by output, of a change or of the weights as they are."""
        z = self._base
        if change is not None:
            z = z + self._u[..., : self._width] @ change.weight.mT + change.bias.unsqueeze(1)
        return self._cross_entropy(z) - self._least

    def spread(self) -> Tensor:
        """The divergence by output where each row gets the mean probability."""
        count = self._group.summed(self._p.new_tensor(self._p.shape[1])).clamp(min=1)
        mean = self._group.summed(self._p.sum(1)) / count
        entropy = -torch.xlogy(mean, mean) - torch.xlogy(1 - mean, 1 - mean)
        return count * entropy - self._least

    def solve(self, ridge: float, start: Change | None = None) -> Change:
        """The least of divergence and ridge, by Newton's method, from a change that is near it."""
        weighted = self._p * (1 - self._p)
        squares = self._group.summed(weighted.mT @ self._u[..., : self._width].square())
        strength = ridge * squares.mean(-1, keepdim=True)  # [groups, outputs, 1]
        # Nothing holds an intercept; an output without any curvature stays as it is.
        strength = strength.expand(-1, -1, self._width)
        none = strength.new_zeros(*strength.shape[:2], self._u.shape[-1] - self._width)
        strength = torch.cat([strength, none], -1)
        delta = self._u.new_zeros(strength.shape)
        if start is not None:
            bias = start.bias.unsqueeze(-1) if self._intercept else none
            delta = torch.cat([start.weight, bias], -1)
        value = self._value(delta, strength)
        for _ in range(_STEPS):
            step = self._step(delta, strength)
            size, was = 1.0, value
            for _ in range(_HALVINGS):
                value = self._value(delta + size * step, strength)
                if value <= was:
                    break
                size /= 2
            else:
                break  # rounding is all that is left
            delta = delta + size * step
            if was - value <= _CLOSE * abs(was):
                break
        shift = delta[..., -1] if self._intercept else delta.new_zeros(delta.shape[:2])
        return Change(delta[..., : self._width], shift)

    def _value(self, delta: Tensor, strength: Tensor) -> float:
        wrong = self._cross_entropy(self._base + self._u @ delta.mT) - self._least
        return float(wrong.sum() + (strength * delta.square()).sum() / 2)

    def _step(self, delta: Tensor, strength: Tensor) -> Tensor:
        """−H⁻¹g of each output, [groups, outputs, inputs (+ 1)]."""
        p = torch.sigmoid(self._base + self._u @ delta.mT)
        slope = self._group.summed((p - self._p).mT @ self._u) + strength * delta
        curve = (p * (1 - p)).mT.unsqueeze(-1)  # [groups, outputs, rows, 1]
        many = max(1, _CHUNK // max(self._u.numel(), 1))
        u = self._u.unsqueeze(1)
        parts = [(part * u).mT @ u for part in curve.split(many, 1)]
        square = self._group.summed(torch.cat(parts, 1))
        # What no row determines, such as the weight of an input that is always zero, stays.
        size = square.diagonal(dim1=-2, dim2=-1).mean(-1, keepdim=True)
        tiny = torch.where(size > 0, 1e-12 * size, 1.0)
        square.diagonal(dim1=-2, dim2=-1).add_(strength + tiny)
        factor, failed = torch.linalg.cholesky_ex(square)
        step = -torch.cholesky_solve(slope.unsqueeze(-1), factor).squeeze(-1)
        return torch.where(failed.unsqueeze(-1) > 0, 0.0, step)


def choose_logistic(
    fit: Logistic, held: Logistic, ridges: Sequence[float]
) -> tuple[Change | None, float | None, float]:
    """The change with the lowest held-out divergence, its ridge, and that divergence.

    None when no change beats none at all.
    """
    best: tuple[Change | None, float | None, float]
    best = None, None, float(held.divergence().sum())
    last: Change | None = None

    def error(ridge: float) -> float:
        nonlocal best, last
        last = fit.solve(ridge, last)
        wrong = float(held.divergence(last).sum())
        if not math.isfinite(wrong):
            return math.inf
        if wrong < best[2]:
            best = (last, ridge, wrong)
        return wrong

    lowest(ridges, error)
    return best
