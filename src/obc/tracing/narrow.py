"""Make a model narrower in place: cut the positions of what goes, and set what counts them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from obc.running.mapping import kept_as
from obc.running.modules import named_tensors
from obc.tracing import attention, layers
from obc.tracing.attributes import read, write
from obc.tracing.experts import drop, moves, paths
from obc.tracing.sites import Site

__all__ = ["attention", "attribute", "kept_positions", "moves_of", "narrow", "take"]

Units = Mapping[str, Sequence[int] | Tensor]
"""The kept channels of sites, by the site's name."""


def kept_positions(
    model: nn.Module, sites: Iterable[Site], units: Units
) -> dict[tuple[str, int], Tensor]:
    """What is left of each parameter dimension when these channels of each site are kept."""
    tensors = named_tensors(model)
    left: dict[tuple[str, int], Tensor] = {}
    for site in sites:
        if site.name not in units:
            continue
        gone = torch.ones(site.size, dtype=torch.bool)
        gone[torch.as_tensor(units[site.name])] = False
        for m in (*site.members, *site.buffers):
            for name, dim in m.places:
                if (name, dim) not in left:
                    left[name, dim] = torch.ones(tensors[name].shape[dim], dtype=torch.bool)
                left[name, dim][m.index[gone].reshape(-1)] = False
    return {key: mask.nonzero().reshape(-1) for key, mask in left.items()}


def narrow(
    model: nn.Module,
    sites: Iterable[Site],
    units: Units,
    how: Callable[[Tensor, dict[int, Tensor]], Tensor],
    kept: Mapping[tuple[str, int], Tensor] | None = None,
) -> dict[Tensor, Tensor]:
    """Keep these channels of these sites; returns the new tensors by the old ones.

    `how` makes the smaller tensor from the old one and {dimension: kept positions}; `kept` are
    the positions, where the caller knows them already.
    """
    sites = [s for s in sites if s.name in units]
    new = layers.cut(model, kept or kept_positions(model, sites, units), how)
    for site in sites:
        for name in site.attributes:
            owner, key = attribute(model, name, own=True)
            write(owner, key, read(owner, key) * len(units[site.name]) // site.size)
    lists = [(*listed, units[site.name]) for site in sites for listed in site.modules]
    for layer, keys, kept_modules in sorted(lists, key=lambda x: -len(x[0])):  # inner ones first
        drop(model, layer, keys, map(int, kept_modules))
    return new


def moves_of(sites: Iterable[Site], units: Units) -> dict[str, str | None]:
    """Where the modules of lists are when these channels of each site are kept."""
    where: dict[str, str | None] = {}
    for site in sites:
        for layer, keys in site.modules if site.name in units else ():
            where |= moves(paths(layer, keys), map(int, units[site.name]))
    return where


def attribute(model: nn.Module, name: str, own: bool = False) -> tuple[Any, str]:
    """The object that holds an attribute; a shared configuration is first copied, if `own`."""
    path, _, key = name.rpartition(".")
    if not path.endswith("config"):
        return model.get_submodule(path), key
    module = model.get_submodule(path.removesuffix("config").removesuffix("."))
    if own:
        module.config = copy.copy(module.config)
    return module.config, key


def take(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """The kept positions of a tensor, in a file if that is in one."""
    part = tensor.detach()
    for dim, index in kept.items():
        part = part.index_select(dim, index.to(part.device))
    return kept_as(part, tensor) if kept else part
