"""A slow, obvious reference: any linear operator's best weight, by dense least squares."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn


def columns(layer: nn.Module, x: Tensor) -> Tensor:
    """What each element of the weight alone would put out, [elements, *output]."""
    probe = copy.deepcopy(layer)
    if getattr(probe, "bias", None) is not None:
        nn.init.zeros_(probe.bias)
    outputs = []
    for element in range(probe.weight.numel()):
        probe.weight.data.zero_().view(-1)[element] = 1.0
        outputs.append(probe(x))
    return torch.stack(outputs)


@torch.no_grad()
def best(
    layer: nn.Module, x: Tensor, target: Tensor, axis: int, ridge: float, intercept: bool
) -> Tensor:
    """argmin over W, b of mean|target − y|² + λ|W − W₀|², λ = ρ tr(Cov u)/q for each output.

    One dense system for each output channel, of all elements of the weight that reach it.
    """
    axis %= target.ndim
    made = columns(layer, x).movedim(axis + 1, -1).flatten(1, -2)  # [elements, rows, channels]
    t = target.movedim(axis, -1).flatten(0, -2)
    weight = layer.weight.detach().clone().view(-1)
    for channel in range(t.shape[1]):
        u = made[:, :, channel].t()
        reach = (u != 0).any(0)
        u = u[:, reach]
        y = t[:, channel] - u @ weight[reach]
        if intercept:
            u, y = u - u.mean(0), y - y.mean()
        strength = (ridge * u.square().mean(0).sum() / u.shape[1] * len(u)).sqrt()
        system = torch.cat([u, strength * torch.eye(u.shape[1], dtype=u.dtype)])
        aim = torch.cat([y, y.new_zeros(u.shape[1])])
        weight[reach] += torch.linalg.lstsq(system, aim, driver="gelsd").solution
    return weight.view_as(layer.weight)
