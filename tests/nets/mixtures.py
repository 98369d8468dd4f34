"""Mixtures whose experts are modules of a list, as model code kept them before it stacked them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Expert(nn.Module):
    """A gated MLP of its own width."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, inner), nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return y


class Mixture(nn.Module):
    """Four experts, of which a router picks two for each token."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.router = nn.Linear(width, 4, bias=False)
        self.experts = nn.ModuleList(Expert(width, 12 + n) for n in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights, picks = self.router(x).softmax(-1).topk(2, -1)
        return self.mixed(x, weights / weights.sum(-1, keepdim=True), picks)

    def mixed(self, x: Tensor, weights: Tensor, picks: Tensor) -> Tensor:
        """What the picked experts make of each row, weighed."""
        raise NotImplementedError


class MaskedMixture(Mixture):
    """Expert by expert, the rows that a mask of picks leaves, as in Mixtral, Qwen-MoE and OLMoE."""

    def mixed(self, x: Tensor, weights: Tensor, picks: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        mask = F.one_hot(picks, len(self.experts)).permute(2, 1, 0)
        for number, expert in enumerate(self.experts):
            place, rows = torch.where(mask[number])
            out.index_add_(0, rows, expert(x[rows]) * weights[rows, place, None])
        return out


class SortedMixture(Mixture):
    """Rows sorted by expert, parted by how many each has, and put back, as in DeepSeek."""

    def mixed(self, x: Tensor, weights: Tensor, picks: Tensor) -> Tensor:
        counts = picks.new_zeros(len(picks), len(self.experts)).scatter_(1, picks, 1).sum(0)
        order = picks.view(-1).argsort()
        rows, parts, start = x[order // picks.shape[1]], [], 0
        for expert, count in zip(self.experts, counts.tolist(), strict=True):
            if count:
                parts.append(expert(rows[start : start + count]))
            start += count
        made = torch.cat(parts)
        back = torch.empty_like(made)
        back[order] = made
        return (back.view(*picks.shape, -1) * weights[..., None]).sum(1)


class MixtureNet(nn.Module):
    """Two residual mixtures between a stem and a head."""

    def __init__(self, kind: type[Mixture]) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 10)
        self.blocks = nn.ModuleList(kind() for _ in range(2))
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        y: Tensor = self.head(x)
        return y
