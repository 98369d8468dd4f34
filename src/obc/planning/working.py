"""The working copy: a model that shrinks step by step, its sites sliced along, never re-traced."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from obc.trace.narrow import kept_positions, narrow
from obc.trace.running import forward, outputs
from obc.trace.sites import Member, Sites, shapes_of
from obc.trace.trial import full


class Working:
    """A copy of a model with its sites, and the original index of every channel that is left.

    Unless it is to be `as_it_is`, its weights may lie in another order in memory, for speed.
    """

    def __init__(self, model: nn.Module, sites: Sites, as_it_is: bool = False) -> None:
        self.model = copy.deepcopy(model)
        self.sites = sites
        self.kept = {s.name: torch.arange(s.size) for s in sites}
        self._relaid = not as_it_is and _may_be_channels_last(model, sites.example)
        if self._relaid:
            _channels_last(self.model)

    def remove(self, gone: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
        """Cut channels, named by their original index; returns the places of those that stay."""
        units = {}
        for name, channels in gone.items():
            if len(channels):
                stays = ~torch.isin(self.kept[name], torch.tensor(list(channels)))
                units[name] = stays.nonzero().reshape(-1)
        left = kept_positions(self.model, self.sites, units)
        narrow(self.model, self.sites, units, full, left)
        if self._relaid:
            _channels_last(self.model)
        self.sites = _sliced(self.sites, units, left, self.model)
        for name, places in units.items():
            self.kept[name] = self.kept[name][places]
        return units


def _sliced(
    sites: Sites,
    units: Mapping[str, Tensor],
    left: Mapping[tuple[str, int], Tensor],
    model: nn.Module,
) -> Sites:
    """The sites of the smaller model: fewer channels, and positions counted anew."""
    moved: dict[tuple[str, int], Tensor] = {}
    for key, stay in left.items():
        moved[key] = torch.full((int(stay.max()) + 1,), -1)
        moved[key][stay] = torch.arange(len(stay))

    def follow(m: Member, places: Tensor | None) -> Member:
        index = m.index if places is None else m.index[places]
        new = moved.get((m.name, m.dim))
        return replace(m, index=index if new is None else new[index])

    found = []
    for site in sites:
        places = units.get(site.name)
        found.append(
            replace(
                site,
                size=site.size if places is None else len(places),
                members=tuple(follow(m, places) for m in site.members),
                buffers=tuple(follow(m, places) for m in site.buffers),
            )
        )
    return Sites(
        found, sites.frozen, sites.untouched, shapes_of(model), sites.example, sites.wiring
    )


def _channels_last(model: nn.Module) -> None:
    """On a processor convolutions are faster over channels that lie together in memory."""
    for p in model.parameters():
        if p.ndim == 4:
            p.data = p.data.contiguous(memory_format=torch.channels_last)


def _may_be_channels_last(model: nn.Module, example: Any) -> bool:
    """Whether another order in memory stays inside: the model runs, and puts out what it did.

    Code such as `x.view(len(x), -1)` asks for one order, in the model or in a loss behind it.
    """
    convolutions = any(isinstance(m, nn.Conv2d) for m in model.modules())
    if not convolutions or any(p.device.type != "cpu" for p in model.parameters()):
        return False
    trial = copy.deepcopy(model)
    _channels_last(trial)
    before = outputs(forward(model, example))
    try:
        after = outputs(forward(trial, example))
    except Exception:
        return False
    return [t.stride() for t in before] == [t.stride() for t in after]
