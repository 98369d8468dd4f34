"""The working copy: a model that shrinks step by step, its sites sliced along, never re-traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from obc.criteria.layout import channels_last, may_be_channels_last
from obc.running.modules import duplicate
from obc.tracing.experts import moved as renamed
from obc.tracing.members import Member
from obc.tracing.narrow import kept_positions, moves_of, narrow
from obc.tracing.sites import Sites, shapes_of
from obc.tracing.trial import full


class Working:
    """A copy of a model with its sites, and the original index of every channel that is left.

    Unless it is to be `as_it_is`, its weights may lie in another order in memory, for speed.
    """

    def __init__(self, model: nn.Module, sites: Sites, as_it_is: bool = False) -> None:
        # Tried before the copy is made, since it takes a copy of its own for a while.
        self._relaid = not as_it_is and may_be_channels_last(model, sites.example)
        self.model = duplicate(model)
        self.sites = sites
        self.kept = {s.name: torch.arange(s.size) for s in sites}
        if self._relaid:
            channels_last(self.model)

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
            channels_last(self.model)
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

    lists = {
        listed: len(units[site.name])
        for site in sites
        for listed in (site.modules if site.name in units else ())
    }

    def follow(m: Member, places: Tensor | None) -> Member:
        if (m.layer, m.keys) in lists:
            m = replace(m, keys=m.keys[: lists[m.layer, m.keys]])
        if not m.places:  # whole experts, of which fewer are left
            return replace(m, index=torch.arange(len(m.keys)).unsqueeze(1))
        new = moved.get(m.places[0])
        if new is None:
            return m
        index = m.index if places is None else m.index[places]
        return replace(m, index=new[index])

    smaller, where = [], moves_of(sites, units)
    for site in sites:
        places = units.get(site.name)
        smaller.append(
            replace(
                site,
                size=site.size if places is None else len(places),
                members=tuple(follow(m, places) for m in site.members),
                buffers=tuple(follow(m, places) for m in site.buffers),
                attributes=tuple(n for a in site.attributes if (n := renamed(a, where))),
            )
        )
    return Sites(
        smaller, sites.frozen, sites.untouched, shapes_of(model), sites.example, sites.wiring
    )
