"""In which order channels go if those that stay take over from each one that went.

A reader with weight W and covariance G of what it reads loses the columns c. With P = G⁻¹, the best
take-over by the columns that stay, and what the squared error of the reader's output grows by, are

    W ← W − W_c V,  V = P_cc⁻¹ P_c:,    Δ_c = tr(W_c P_cc⁻¹ W_cᵀ),    P ← P − P_:c V

(B. Hassibi and D. Stork, Second Order Derivatives for Network Pruning: Optimal Brain Surgeon, 1992,
for whole columns). W itself is not needed: K = WᵀW follows by K ← K − K_:c V − Vᵀ K_c: + Vᵀ K_cc V.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

RIDGE = 1e-4  # of the mean variance of an input: channels that only copy others stay solvable
_UPDATES = 256  # of one reader: a wider site loses several channels between two of them


class Reader:
    """A layer that reads a site's channels; errors are shares of its output's variance.

    Args:
        weight: by input, [inputs, outputs x taps].
        covariance: of the inputs, [inputs, inputs].
        index: the inputs that each channel of the site owns, [size, k].
    """

    def __init__(self, weight: Tensor, covariance: Tensor, index: Tensor) -> None:
        weight, covariance = weight.double(), covariance.double()
        gram = weight @ weight.T
        variance = (gram * covariance).sum()
        ridge = RIDGE * covariance.diagonal().mean()
        ridged = covariance + ridge * torch.eye(len(covariance), device=covariance.device).double()
        factor, failed = torch.linalg.cholesky_ex(ridged)
        # Nothing varies here, so nothing is lost.
        self.varies = bool(variance > 0) and not bool(failed)
        self.index, self.gram = index.to(gram.device), gram / variance
        self.inverse = torch.cholesky_inverse(factor) if self.varies else ridged

    def increase(self) -> Tensor:
        """Δ of each channel by itself, [size]; 0 of those that are gone."""
        at = self.index.unsqueeze(2), self.index.unsqueeze(1)
        return (self.gram[at] * torch.linalg.inv(self.inverse[at])).sum((1, 2)).clamp_min(0)

    def remove(self, channels: Tensor) -> None:
        """Let the columns that stay take over from these channels' columns."""
        c = self.index[channels].flatten()
        v = torch.linalg.solve(self.inverse[c][:, c], self.inverse[c])
        cross = self.gram[:, c] @ v
        self.gram += v.T @ self.gram[c][:, c] @ v - cross - cross.T
        self.inverse -= self.inverse[:, c] @ v
        for matrix, diagonal in ((self.gram, 0.0), (self.inverse, 1.0)):
            matrix[c], matrix[:, c] = 0.0, 0.0
            matrix[c, c] = diagonal


def eliminated(readers: Sequence[Reader]) -> tuple[Tensor, Tensor]:
    """Channels go one at a time, the one with the least Δ over all readers first.

    Returns:
        Δ of each channel at the beginning, and when it went, never less than of one before, [size].

    >>> twins = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    >>> alone, joint = eliminated([Reader(torch.eye(3), twins, torch.arange(3).view(3, 1))])
    >>> [round(x, 2) for x in alone.tolist()], [round(x, 2) for x in joint.tolist()]
    ([0.0, 0.0, 0.33], [0.0, 0.67, 0.67])
    """
    alone = torch.stack([reader.increase() for reader in readers]).sum(0)
    joint, size = torch.zeros_like(alone), len(alone)
    left, highest = torch.ones(size, dtype=torch.bool, device=alone.device), 0.0
    for _ in range(0, size, portion := -(-size // _UPDATES)):
        now = torch.stack([reader.increase() for reader in readers]).sum(0)
        lowest, order = now.masked_fill(~left, torch.inf).sort(stable=True)
        going = order[: min(portion, int(left.sum()))]
        joint[going] = lowest[: len(going)].clamp_min(highest)
        highest = float(joint[going].max())
        left[going] = False
        for reader in readers:
            reader.remove(going)
    return alone, joint
