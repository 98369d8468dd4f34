"""In which order channels go if those that stay take over from each one that went.

A reader with weight W and covariance G of what it reads loses the columns c. With P = G⁻¹, the best
take-over by the columns that stay, and what the squared error of the reader's output grows by, are

    W ← W − W_c V,  V = P_cc⁻¹ P_c:,    Δ_c = tr(W_c P_cc⁻¹ W_cᵀ),    P ← P − P_:c V

(B. Hassibi and D. Stork, Second Order Derivatives for Network Pruning: Optimal Brain Surgeon, 1992,
for whole columns). W itself is not needed: K = WᵀW follows by K ← K − K_:c V − Vᵀ K_c: + Vᵀ K_cc V.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

RIDGE = 1e-4  # of the mean variance of an input: channels that only copy others stay solvable
_UPDATES = 128  # of one reader: where more channels are to go, several go at a time


class Reader:
    """A layer that loses inputs; errors are shares of its output's variance.

    Args:
        weight: by input, [inputs, outputs x taps]: the taps of a kernel count as outputs.
        covariance: of the inputs, [inputs, inputs].

    >>> reader = Reader(torch.ones(2, 1), torch.ones(2, 2))
    >>> each = torch.tensor([[0], [1]])
    >>> [round(x, 2) for x in reader.increase(each).tolist()]  # either stands in for the other
    [0.0, 0.0]
    >>> reader.remove(each[0])
    >>> [round(x, 2) for x in reader.increase(each).tolist()]
    [0.0, 1.0]
    """

    def __init__(self, weight: Tensor, covariance: Tensor) -> None:
        weight, covariance = weight.double(), covariance.double()
        gram = weight @ weight.T
        ridge = RIDGE * covariance.diagonal().mean().clamp_min(1e-300)
        self.inverse = torch.linalg.inv(covariance + ridge * torch.eye(len(gram)).to(gram))
        # What never varies costs nothing.
        self.gram = gram / (gram * covariance).sum().clamp_min(1e-300)

    def increase(self, index: Tensor) -> Tensor:
        """Δ of each channel, a row of inputs in `index` [size, k]; 0 of those that are gone."""
        at = index.unsqueeze(2), index.unsqueeze(1)
        deltas: Tensor = (self.gram[at] * torch.linalg.inv(self.inverse[at])).sum((1, 2))
        return deltas.clamp_min(0)

    def remove(self, c: Tensor) -> None:
        """Let the inputs that stay take over from these."""
        v = torch.linalg.solve(self.inverse[c][:, c], self.inverse[c])
        cross = self.gram[:, c] @ v
        self.gram += v.T @ self.gram[c][:, c] @ v - cross - cross.T
        self.inverse -= self.inverse[:, c] @ v
        for matrix, diagonal in ((self.gram, 0.0), (self.inverse, 1.0)):
            matrix[c], matrix[:, c] = 0.0, 0.0
            matrix[c, c] = diagonal


Place = tuple[Reader, Tensor]
"""A layer that reads a site, and its inputs that each channel of the site owns, [size, k]."""


def eliminated(
    places: Mapping[str, Sequence[Place]], worth: Mapping[str, float]
) -> dict[str, Tensor]:
    """Channels go one by one, each time the one that costs its readers least, until all are gone.

    Args:
        places: where each site is read; a reader of several sites is one object.
        worth: of each site, what its channels cost in sum if each of them went alone. It makes
            errors of different layers comparable.

    Returns:
        By site what each channel cost when it went, but never less than one before it, [size].
    """
    costs: dict[str, Tensor] = {}
    for group in _sharing(places):
        costs |= _emptied({site: places[site] for site in group}, worth)
    return costs


def _emptied(
    places: Mapping[str, Sequence[Place]], worth: Mapping[str, float]
) -> dict[str, Tensor]:
    """`eliminated`, of sites that share readers."""

    def increase(site: str) -> Tensor:
        return torch.stack([reader.increase(index) for reader, index in places[site]]).sum(0)

    alone = {site: increase(site) for site in places}
    scale = {s: worth[s] / max(float(delta.sum()), 1e-300) for s, delta in alone.items()}
    costs = {site: torch.zeros_like(delta) for site, delta in alone.items()}
    left = {site: torch.ones_like(delta, dtype=torch.bool) for site, delta in alone.items()}
    total = sum(map(len, alone.values()))
    for _ in range(0, total, portion := -(-total // _UPDATES)):
        now = {s: (scale[s] * increase(s)).masked_fill(~left[s], torch.inf) for s in places}
        lowest = torch.cat(list(now.values())).argsort(stable=True)[:portion]
        start = 0
        for site, values in now.items():
            going = lowest[(lowest >= start) & (lowest < start + len(values))] - start
            going, start = going[left[site][going]], start + len(values)
            if len(going):
                costs[site][going] = values[going].clamp_min(float(costs[site].max()))
                left[site][going] = False
                for reader, index in places[site]:
                    reader.remove(index[going].flatten())
    return costs


def _sharing(places: Mapping[str, Sequence[Place]]) -> Iterator[list[str]]:
    """Sites in groups that share no reader with each other."""
    groups: list[tuple[list[str], set[int]]] = []
    for site, own in places.items():
        sites, readers = [site], {id(reader) for reader, _ in own}
        for group in [g for g in groups if g[1] & readers]:
            groups.remove(group)
            sites, readers = [*group[0], *sites], readers | group[1]
        groups.append((sites, readers))
    return (sites for sites, _ in groups)
