"""A slow and obvious oracle: the original model with every removed channel masked.

It knows the members of each site and what is kept, and nothing of how they were found. Weights of
removed channels are zero wherever they stand. That leaves statistics over channels, which count
how many there are: those are taken over the kept channels, in plain sums.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from obc import Member, Site, Sites
from tests.examples import Example
from tests.sensitive import run, tensors

Kept = Mapping[str, Sequence[int]]

# Norms that language models write out, by the name of their class.
BY_HAND = ("RMSNorm", "T5LayerNorm", "RMSNormByHand")


def random_kept(sites: Sites, seed: int = 0, ratio: float = 0.3) -> dict[str, list[int]]:
    """All but a random share of every site's channels, at least one of which goes and one stays."""
    generator = torch.Generator().manual_seed(seed)
    kept = {}
    for site in sites:
        gone = min(max(1, round(ratio * site.size)), site.size - 1)
        kept[site.name] = sorted(torch.randperm(site.size, generator=generator)[gone:].tolist())
    return kept


def masked_outputs(model: nn.Module, sites: Sites, kept: Kept, example: Example) -> list[Tensor]:
    """What the original puts out when the removed channels are masked."""
    masks = _masks(model, sites, kept)
    twin = copy.deepcopy(model).eval()
    parameters = dict(twin.named_parameters())
    for name, mask in masks.items():
        parameters[name].data.mul_(mask)
    for name, module in twin.named_modules():
        if type(module).__name__.endswith(BY_HAND) and f"{name}.weight" in masks:
            epsilon = getattr(module, "variance_epsilon", 1e-6)
            norm = partial(_rms_norm, module.weight, masks[f"{name}.weight"], epsilon)
            module.forward = norm  # type: ignore[assignment]
    of_kept = {id(parameters[name]): mask for name, mask in masks.items()}
    # The fused encoder layer calls no norm that could be watched.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), _OverKept(of_kept):
            return tensors(run(twin, example))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _masks(model: nn.Module, sites: Sites, kept: Kept) -> dict[str, Tensor]:
    """For each parameter that loses something: one where it is kept, zero where it is not."""
    parameters = dict(model.named_parameters())
    masks: dict[str, Tensor] = {}
    for name, channels in kept.items():
        gone = sorted(set(range(sites[name].size)) - set(channels))
        for member in sites[name].members:
            mask = masks.setdefault(member.name, torch.ones_like(parameters[member.name]).detach())
            mask.index_fill_(member.dim, member.index[gone].flatten(), 0)
    return masks


def _rms_norm(weight: Tensor, kept: Tensor, epsilon: float, x: Tensor) -> Tensor:
    power = (x * kept).square().sum(-1, keepdim=True) / kept.sum()
    return weight * x / torch.sqrt(power + epsilon)


class _OverKept(TorchFunctionMode):
    """Takes the statistics of torch's own norms over the kept channels."""

    def __init__(self, kept: dict[int, Tensor]) -> None:
        self.kept = kept

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        norms: dict[Callable[..., Tensor], Callable[..., Tensor]] = {
            F.layer_norm: self.layer_norm,
            F.rms_norm: self.rms_norm,
            F.group_norm: self.group_norm,
        }
        return norms.get(func, func)(*args, **(kwargs or {}))

    def layer_norm(
        self, x: Tensor, shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Tensor:
        if id(weight) not in self.kept:
            return F.layer_norm(x, shape, weight, bias, eps)
        kept, dims = self.kept[id(weight)], tuple(range(-len(shape), 0))
        mean = (x * kept).sum(dims, keepdim=True) / kept.sum()
        variance = ((x - mean) * kept).square().sum(dims, keepdim=True) / kept.sum()
        y = (x - mean) / torch.sqrt(variance + eps) * weight
        return y if bias is None else y + bias

    def rms_norm(self, x: Tensor, shape: Any, weight: Any = None, eps: Any = None) -> Tensor:
        if id(weight) not in self.kept:
            return F.rms_norm(x, shape, weight, eps)
        eps = torch.finfo(x.dtype).eps if eps is None else eps
        return _rms_norm(weight, self.kept[id(weight)], eps, x)

    def group_norm(
        self, x: Tensor, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Tensor:
        if id(weight) not in self.kept:
            return F.group_norm(x, groups, weight, bias, eps)
        kept = self.kept[id(weight)].view(1, groups, -1, 1)
        grid = x.reshape(len(x), groups, kept.shape[2], -1)
        count = (kept.sum(2, keepdim=True) * grid.shape[3]).clamp(min=1)  # a group may be gone
        mean = (grid * kept).sum((2, 3), keepdim=True) / count
        variance = ((grid - mean) * kept).square().sum((2, 3), keepdim=True) / count
        y = ((grid - mean) / torch.sqrt(variance + eps)).view_as(x)
        wide = (1, -1) + (1,) * (x.ndim - 2)
        return y * weight.view(wide) + bias.view(wide)


def relative_error(expected: list[Tensor], found: list[Tensor]) -> float:
    """The largest difference in any output, relative to its largest value."""
    assert expected
    assert [t.shape for t in expected] == [t.shape for t in found]
    assert all(t.isfinite().all() for t in expected)
    gaps = [(a - b).abs().max() / a.abs().max() for a, b in zip(expected, found, strict=True)]
    return max(float(gap) for gap in gaps)


def rolled(original: nn.Module, pruned: nn.Module, site: Site, member: Member, kept: Kept) -> Any:
    """The pruned model with one member's kept slices taken from the channel before each."""
    wrong = copy.deepcopy(pruned)
    before = dict(original.named_parameters())[member.name]
    slices = torch.zeros(before.shape[member.dim], dtype=torch.bool)
