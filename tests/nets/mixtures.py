"""Mixtures whose experts are modules of a list, as model code kept them before it stacked them."""

from __future__ import annotations

from collections.abc import Sequence

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
    """Experts of these inner widths, of which a router picks some for each token."""

    def __init__(
        self, width: int = 10, inner: Sequence[int] = (12, 13, 14, 15), top_k: int = 2
    ) -> None:
        super().__init__()
        self.num_experts, self.top_k = len(inner), top_k
        self.router = nn.Linear(width, len(inner), bias=False)
        self.experts = nn.ModuleList(Expert(width, n) for n in inner)

    def forward(self, x: Tensor) -> Tensor:
        weights, picks = self.odds(self.router(x)).topk(self.top_k, -1)
        return self.mixed(x, weights / weights.sum(-1, keepdim=True), picks)

    def odds(self, logits: Tensor) -> Tensor:
        """How much each expert is worth to a token."""
        return logits.softmax(-1)

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


class OldMixtral(Mixture):
    """As transformers had it before 5: experts by number, those without rows passed over."""

    def mixed(self, x: Tensor, weights: Tensor, picks: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        mask = F.one_hot(picks, num_classes=self.num_experts).permute(2, 1, 0)
        for number in range(self.num_experts):
            place, rows = torch.where(mask[number])
            if rows.shape[0] == 0:
                continue
            state = x[None, rows].reshape(-1, x.shape[-1])
            out.index_add_(0, rows, self.experts[number](state) * weights[rows, place, None])
        return out


class SigmoidMixture(OldMixtral):
    """What an expert is worth does not depend on the others, as in DeepSeek-V3."""

    def odds(self, logits: Tensor) -> Tensor:
        return logits.sigmoid()


class SharedMixture(SortedMixture):
    """Beside the picked experts one that all rows go to, as in DeepSeek, gated, as in Qwen2-MoE."""

    def __init__(
        self, width: int = 10, inner: Sequence[int] = (12, 13, 14, 15), top_k: int = 2
    ) -> None:
        super().__init__(width, inner, top_k)
        self.shared_expert, self.shared_gate = Expert(width, 9), nn.Linear(width, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.sigmoid(self.shared_gate(x)) * self.shared_expert(x)


class CountedMixture(MaskedMixture):
    """What an expert puts out depends on its number."""

    def mixed(self, x: Tensor, weights: Tensor, picks: Tensor) -> Tensor:
        return super().mixed(x, weights, picks) + (weights * picks).sum(-1, keepdim=True)


class DenseMixture(Mixture):
    """All experts work on all rows; most of it is multiplied by zero."""

    def mixed(self, x: Tensor, weights: Tensor, picks: Tensor) -> Tensor:
        made = torch.stack([expert(x) for expert in self.experts], 1)
        spread = x.new_zeros(len(x), self.num_experts).scatter(1, picks, weights)
        return (made * spread[..., None]).sum(1)


class MixtureNet(nn.Module):
    """Residual mixtures between a stem and a head."""

    def __init__(
        self,
        kind: type[Mixture],
        inner: Sequence[int] = (12, 13, 14, 15),
        depth: int = 2,
        top_k: int = 2,
    ) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 10)
        self.blocks = nn.ModuleList(kind(inner=inner, top_k=top_k) for _ in range(depth))
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        y: Tensor = self.head(x)
        return y
