"""A slow and obvious oracle: the original model with every removed channel masked.

It knows the members of each site and what is kept, and nothing of how they were found. Weights of
removed channels are zero wherever they stand. That leaves statistics over channels, which count
how many there are: those are taken over the kept channels, in plain sums.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from obc import Member, Sites
from tests.examples import Example
from tests.sensitive import run, tensors

Kept = Mapping[str, Sequence[int]]

# Norms that language models write out, by the name of their class.
BY_HAND = {
    *("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm", "Phi3RMSNorm", "MistralRMSNorm"),
    *("T5LayerNorm", "RMSNormByHand"),
}


def random_kept(sites: Sites, seed: int = 0, ratio: float = 0.3) -> dict[str, list[int]]:
    """All but a random share of every site's channels, at least one of which goes and one stays."""
    generator = torch.Generator().manual_seed(seed)
    kept = {}
    for site in sites:
        gone = min(max(1, round(ratio * site.size)), site.size - 1)
        kept[site.name] = sorted(torch.randperm(site.size, generator=generator)[gone:].tolist())
    return kept


def masked_outputs(
    model: nn.Module, sites: Sites, kept: Kept, example: Example, producers: bool = True
) -> list[Tensor]:
    """What the original puts out when the removed channels are masked.

    Without `producers` only what reads them is: a weight that is divided by its own length cannot
    be zero.
    """
    twin = copy.deepcopy(model).eval()
    parameters = dict(twin.named_parameters())
    masks = {}
    for name, member, at in _removed(sites, kept):
        if name in parameters and (producers or member.role != "out"):
            mask = masks.setdefault(name, torch.ones_like(parameters[name]).detach())
            mask.index_fill_(member.dim, at, 0)
    for name, mask in masks.items():
        parameters[name].data.mul_(mask)
    for name, module in twin.named_modules():
        mask = masks.get(f"{name}.weight")
        if mask is not None and type(module).__name__ in BY_HAND:
            epsilon = getattr(module, "variance_epsilon", 1e-6)
            module.forward = partial(_rms_norm, module.weight, mask, epsilon)
    # The fused encoder layer calls no norm that could be watched.
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.no_grad(), _OverKept({id(parameters[n]): mask for n, mask in masks.items()}):
            return tensors(run(twin, example))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


def _removed(sites: Sites, kept: Kept) -> Iterator[tuple[str, Member, Tensor]]:
    """The positions that go, of every parameter and buffer in every site."""
    for name, channels in kept.items():
        site = sites[name]
        gone = sorted(set(range(site.size)) - set(channels))
        for member in (m for held in (*site.members, *site.buffers) for m in held.each()):
            yield member.name, member, member.index[gone].flatten()


def cut(tensor: Tensor, name: str, sites: Sites, kept: Kept) -> Tensor:
    """What is left of the named parameter or buffer, or of anything of its shape."""
    stays = [torch.ones(size, dtype=torch.bool) for size in tensor.shape]
    for other, member, at in _removed(sites, kept):
        if other == name:
            stays[member.dim][at] = False
    for dim, stay in enumerate(stays):
        tensor = tensor.index_select(dim, stay.nonzero().flatten())
    return tensor


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
    gaps = [(a - b).abs().max() for a, b in zip(expected, found, strict=True)]
    sizes = [a.abs().max().clamp(min=1e-30) for a in expected]  # all of an output may be zero
    return max(float(gap / size) for gap, size in zip(gaps, sizes, strict=True))


def roll(original: nn.Module, pruned: nn.Module, sites: Sites, kept: Kept, member: Member) -> None:
    """Make the pruned model wrong: each of a member's channels gets the slice of the one before."""
    weight = dict(original.named_parameters())[member.name].detach()
    order = torch.arange(weight.shape[member.dim])
    order[member.index] = member.index.roll(1, 0)
    wrong = cut(weight.index_select(member.dim, order), member.name, sites, kept)
    dict(pruned.named_parameters())[member.name].data.copy_(wrong)
