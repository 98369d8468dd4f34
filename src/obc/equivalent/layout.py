"""Which weights get a C or a D, over which channels, read off the sites and the plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from obc.equivalent.factors import Block, Factors, Mix
from obc.tracing.experts import moved
from obc.tracing.members import Member
from obc.tracing.narrow import Units, moves_of
from obc.tracing.sites import Site

Parts = dict[int, list[tuple[Site, Member]]]
"""The members of one weight, by dimension."""


@dataclass
class Layout:
    """Factors by the name of their weight, and the weight whose C each bias follows.

    `sliced` are weights that are only cut although they read or put out channels, and why.
    """

    factors: dict[str, Factors] = field(default_factory=dict)
    biases: dict[str, str] = field(default_factory=dict)
    sliced: dict[str, str] = field(default_factory=dict)


def lay_out(
    model: nn.Module,
    sites: Sequence[Site],
    units: Units,
    groups: Mapping[str, int],
    tensors: Mapping[str, Tensor],
) -> Layout:
    """The factors of a model that was cut; `groups` and `tensors` are as they were before.

    All go by the names that they have now.
    """
    by_name = _members(sites, units)
    uses = Counter(id(p) for m in model.modules() for p in m._parameters.values())
    shared = {name for name in by_name if uses[id(model.get_parameter(name))] > 1}
    layout = Layout()
    for name, parts in by_name.items():
        roles = {m.role for members in parts.values() for _, m in members}
        weight, layer = tensors[name], name.rpartition(".")[0]
        if roles == {"norm"} or weight.ndim < 2:
            continue
        why = _undefined(model.get_submodule(layer), name, weight, roles, name in shared)
        if not why and _across_groups(weight, parts, groups.get(layer, 1)):
            if weight.shape[1] == 1:  # depthwise: a filter of one channel has nothing to mix
                continue
            why = "whole groups of the convolution go, and groups cannot be mixed"
        if why:
            layout.sliced[name] = why
            continue
        mixes: dict[str, list[Mix]] = {"out": [], "in": []}
        for dim, members in parts.items():
            mix = _mix(weight, dim, members, units, groups.get(layer, 1))
            mixes[members[0][1].role].append(mix)
        factors = Factors(weight.shape, mixes["out"], mixes["in"])
        factors.to(device=weight.device, dtype=weight.dtype).requires_grad_(weight.requires_grad)
        layout.factors[name] = factors
    _follow(layout, by_name, tensors, shared)
    return layout


def _members(sites: Sequence[Site], units: Units) -> dict[str, Parts]:
    """The members along every dimension that loses channels, by the name of their parameter."""
    by_name: dict[str, Parts] = {}
    where = moves_of(sites, units)
    members = [
        (site, m, name)
        for site in sites
        for member in site.members
        for m in member.each()
        if (name := moved(m.name, where)) is not None
    ]
    for site, m, name in members:
        if len(units.get(site.name, range(site.size))) < site.size:
            by_name.setdefault(name, {}).setdefault(m.dim, [])
    for site, m, name in members:  # also what loses nothing: D runs over all that a layer reads
        if m.dim in by_name.get(name, ()):
            by_name[name][m.dim].append((site, m))
    return by_name


def _undefined(module: Any, name: str, weight: Tensor, roles: set[str], shared: bool) -> str:
    """Why a weight is not a plain linear map of its own, if so."""
    if shared:
        return "one weight serves in several places, and C and D would part it"
    if "norm" in roles:
        return "it scales some channels and mixes others"
    if "parametrizations." in name or parametrize.is_parametrized(module):
        return "it is parametrized already"
    if name.endswith(("weight_g", "weight_v")):
        return "it is normed by its length"
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.sparse):
        return "an embedding with max_norm or sparse gradients is changed row by row"
    if not weight.is_floating_point():
        return f"it holds {weight.dtype}"
    return ""


def _across_groups(weight: Tensor, parts: Parts, groups: int) -> bool:
    """Whether channels to mix lie in several groups: what one reads, the others do not."""
    group = [m.index // (len(weight) // groups) for _, m in parts.get(0, ())]
    return groups > 1 and any(bool((g != g[:1]).any()) for g in group)


def _mix(
    weight: Tensor, dim: int, members: list[tuple[Site, Member]], units: Units, groups: int
) -> Mix:
    """C or D along one dimension: one block over all plain channels, one for each other site."""
    width = weight.shape[dim]
    stays = torch.ones(width, dtype=torch.bool)
    spread: dict[int, list[tuple[Tensor, Tensor]]] = {}
    lone: list[tuple[Tensor, Tensor]] = []
    rest = torch.ones(width, dtype=torch.bool)
    for site, m in members:
        kept = torch.zeros(site.size, dtype=torch.bool)
        kept[torch.as_tensor(units.get(site.name, range(site.size)))] = True
        stays[m.index[~kept].reshape(-1)] = False
        rest[m.index.reshape(-1)] = False
        places = _places(site, m)  # [places, size, positions]
        if len(places) == 1:
            spread.setdefault(places.shape[2], []).append((places, kept))
        else:
            lone.append((places, kept))
    if 1 in spread and rest.any():  # channels that stay are read like all others
        spread[1].append(
            (rest.nonzero().view(1, -1, 1), torch.ones(int(rest.sum()), dtype=torch.bool))
        )
    rank = stays.cumsum(0) - 1
    blocks = [_joined(parts, rank) for parts in spread.values()]
    blocks += [_joined([part], rank) for part in lone]
    return Mix(blocks, dim, width, groups if dim == 1 else 1)


def _joined(parts: list[tuple[Tensor, Tensor]], rank: Tensor) -> Block:
    """Channels of several sites side by side, in the order of the dimension."""
    places, kept = torch.cat([p for p, _ in parts], 1), torch.cat([k for _, k in parts])
    order = places[0, :, 0].argsort()
    places, kept = places[:, order], kept[order]
    return Block(places, rank[places[:, kept]], kept.nonzero().reshape(-1))


def _places(site: Site, member: Member) -> Tensor:
    """The positions of each channel as [places, size, positions].

    What a channel puts out are places, each with its own meaning: the features of a head, the
    halves of a gate. Where a reader finds more of a channel than was put out, the surplus are
    positions, as after a flatten.
    """
    size, k = member.index.shape
    put_out = max((m.index.shape[1] for m in site.members if m.role == "out"), default=1)
    if member.role == "out" or put_out % k == 0:
        places, positions = k, 1
    else:
        places, positions = (put_out, k // put_out) if k % put_out == 0 else (1, k)
    first = member.index[0]
    if int(first[positions - 1] - first[0]) == positions - 1:
        return member.index.view(size, places, positions).transpose(0, 1)
    return member.index.view(size, positions, places).permute(2, 0, 1)


def _follow(
    layout: Layout, by_name: Mapping[str, Parts], tensors: Mapping[str, Tensor], shared: set[str]
) -> None:
    """Let a bias follow the C of the weight beside it, where both put out the same channels."""
    for name, parts in by_name.items():
        weight = name.removesuffix("bias") + "weight"
        if tensors[name].ndim != 1 or not name.endswith("bias") or weight not in layout.factors:
            continue
        outs = [ms for ms in by_name[weight].values() if ms[0][1].role == "out"]
        if name in shared:
            layout.sliced[name] = "one bias serves in several places"
        if name in shared or len(outs) != 1:
            continue
        members, of_bias = outs[0], parts[0]
        mix: Any = layout.factors[weight].C[0]
        if [s.name for s, _ in members] == [s.name for s, _ in of_bias] and all(
            # A grouped transposed convolution shares its outputs; its bias spells them all.
            torch.equal(a.index, b.index) or mix.groups * a.index.numel() == b.index.numel()
            for (_, a), (_, b) in zip(members, of_bias, strict=True)
        ):
            layout.biases[name] = weight
