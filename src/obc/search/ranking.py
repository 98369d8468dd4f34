"""In which order channels go: by score, or by score per saved cost, over one scope or another."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from obc.costs.fitted import unit_of
from obc.errors import ObcError
from obc.tracing.sites import Site, Sites

SCOPES = ("global", "local", "isomorphic")
RANKS = ("score", "score/cost")
PACES = ("channels", "cost")


class Chunk(NamedTuple):
    """Channels of one site that go together: one, or as many as `round_to` asks for."""

    site: int
    channels: tuple[int, ...]
    scores: tuple[float, ...]


def allowed_counts(site: Site, floor: int, round_to: int) -> list[int]:
    """How many channels a site may keep, from all of them down to its floor.

    With `round_to`, what is left of the site's layers is a multiple of it.

    >>> from obc.tracing.members import Member
    >>> one = Member("a", "weight", 0, "out", torch.arange(20).view(20, 1))
    >>> allowed_counts(Site("a", 20, (one,)), 3, 8)
    [20, 16, 8]
    """
    unit = unit_of(site, round_to)
    highest = (site.size - 1) // unit * unit
    return [site.size, *(n for n in range(highest, 0, -unit) if n >= floor)]


def kinds(sites: Sites, model: nn.Module) -> list[int]:
    """A number for each site; sites whose layers play the same parts have the same."""
    seen: dict[tuple[tuple[str, ...], ...], int] = {}
    numbers = []
    for site in sites:
        parts = sorted(
            (type(model.get_submodule(m.layer)).__name__, m.param, str(m.dim), m.role)
            for m in site.members
        )
        numbers.append(seen.setdefault(tuple(parts), len(seen)))
    return numbers


def chunks_of(site: int, kept: Sequence[int], scores: Tensor, levels: Sequence[int]) -> list[Chunk]:
    """A site's channels from the lowest score up, in the portions its allowed counts ask for."""
    in_order, order = torch.sort(scores, stable=True)
    values, channels = in_order.tolist(), [kept[i] for i in order.tolist()]
    chunks, start = [], 0
    for count in (n for n in levels if n < len(kept)):
        end = len(kept) - count
        portion = tuple(values[start:end])
        if not all(map(math.isfinite, portion)):
            break  # a score of infinity means that the channel stays
        chunks.append(Chunk(site, tuple(channels[start:end]), portion))
        start = end
    return chunks


def ranked(
    chunks: Sequence[Sequence[Chunk]],
    scope: str,
    kind: Sequence[int],
    sizes: Sequence[int],
    kept: Sequence[int],
    savings: Tensor | None,
) -> list[Chunk]:
    """All chunks, the first to go first.

    `savings` is what one channel of each site saves now. Over a local scope every site loses the
    same share, over an isomorphic one every kind of site does.
    """

    keyed: list[tuple[float, Chunk]] = []
    for of_site in chunks:
        key = -math.inf
        for chunk in of_site:
            value = sum(chunk.scores) / len(chunk.scores)
            if savings is not None:
                saving = float(savings[chunk.site])
                value = value / saving if saving > 0 else math.inf
            key = max(key, value)  # rounding must not turn the order within a site around
            keyed.append((key, chunk))
    keyed.sort(key=lambda pair: pair[0])  # stable: equal scores stay in the order of the sites
    in_order = [chunk for _, chunk in keyed]
    if scope == "global":
        return in_order
    group = list(range(len(sizes))) if scope == "local" else list(kind)
    total: dict[int, int] = {}
    gone: dict[int, int] = {}
    for site, g in enumerate(group):
        total[g] = total.get(g, 0) + sizes[site]
        gone[g] = gone.get(g, 0) + sizes[site] - kept[site]
    shares = []
    for chunk in in_order:
        g = group[chunk.site]
        gone[g] += len(chunk.channels)
        shares.append((gone[g] / total[g], chunk))
    shares.sort(key=lambda pair: pair[0])
    return [chunk for _, chunk in shares]


def check_scores(scores: Mapping[str, Tensor]) -> None:
    """Refuse scores that cannot be ranked, and say where their order means nothing.

    >>> check_scores({"a": torch.zeros(3), "b": torch.zeros(2)})
    Traceback (most recent call last):
    obc.errors.ObcError: all channels have the same score (0), so which of them go would be \
    arbitrary; give other batches, another loss or another criterion...
    """
    for name, values in scores.items():
        if torch.isnan(values).any():
            raise ObcError(f"site '{name}': a score is not a number; channels cannot be ranked")
    finite = {n: own[own.isfinite()] for n, own in scores.items()}
    level = [n for n, own in finite.items() if len(own) > 1 and bool((own == own[0]).all())]
    every = torch.cat(list(finite.values()))
    if len(every) > 1 and bool((every == every[0]).all()):
        raise ObcError(
            f"all channels have the same score ({float(every[0]):g}), so which of them go would "
            "be arbitrary; give other batches, another loss or another criterion"
        )
    if level:
        more = f" and {len(level) - 3} more" if len(level) > 3 else ""
        warnings.warn(
            f"all channels of {', '.join(level[:3])}{more} have the same score: which of them go "
            "first is arbitrary",
            stacklevel=2,
        )
