"""Structural parameters: each layer's share of a channel, as rows of a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from obc.tracing.members import Member
from obc.tracing.sites import Site


@dataclass(frozen=True, eq=False)
class Part:
    """One layer's share of a site: a filter with its bias, an input slice, or a norm's vectors."""

    site: str
    size: int
    layer: str
    role: str
    members: tuple[Member, ...]

    def rows(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """What each channel owns of these tensors (weights, gradients): [size, d].

        >>> m = Member("fc", "weight", 0, "out", torch.tensor([[0], [1]]))
        >>> Part("fc", 2, "fc", "out", (m,)).rows({"fc.weight": torch.eye(2)})
        tensor([[1., 0.],
                [0., 1.]])
        """
        return torch.cat([self.one(m.of(tensors), m) for m in self.members], 1)

    def one(self, tensor: Tensor, member: Member) -> Tensor:
        """What each channel owns of one tensor, as a row."""
        slices = tensor.movedim(member.dim, 0)[member.index.to(tensor.device)]
        return slices.reshape(self.size, -1)


def parts_of(site: Site) -> list[Part]:
    """The structural parameters of a site; a weight and its bias, or a norm's two, are one."""
    by_layer: dict[tuple[str, str, str], list[Member]] = {}
    for m in site.members:
        stem = m.param
        if m.role != "in":
            for suffix in ("weight", "bias", "gamma", "beta"):
                stem = stem.removesuffix(suffix)
        # A tensor may belong twice, by two of its dimensions: those are two parameters.
        key = (m.layer, f"{m.role}.{m.dim}" if m.role == "in" else m.role, stem)
        by_layer.setdefault(key, []).append(m)
    return [
        Part(site.name, site.size, layer, members[0].role, tuple(members))
        for (layer, _, _), members in by_layer.items()
    ]
