"""The drawing of a model's channels: sites as bands through its layers, in the order they run."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import sqrt
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from obc.disk.writing import write
from obc.tracing.sites import Frozen, Site, Sites

ROW, LANE = 24, 26  # pixels from row to row and from lane to lane
_THIN, _THICK = 6.0, 20.0
_COLOURS = (1, 2, 3, 4, 6, 7, 8)  # of style.css; grey is for what stays
_TRUNK = "(itself)"  # the layer of parameters that the model holds itself

Widths = Mapping[str, tuple[int, int]]  # by site: channels before and after


@dataclass(frozen=True)
class Mark:
    """A layer's part in a site: it puts channels out, reads them, or acts on each of them."""

    row: int
    role: str


@dataclass(frozen=True)
class Band:
    """A site from its first layer to its last; `inner` is what a plan keeps of its width."""

    name: str
    lane: int
    colour: int
    first: int
    last: int
    width: float
    inner: float
    tip: str
    marks: list[Mark]


@dataclass
class Row:
    """A layer: what it reads and puts out, and why some of that stays."""

    layer: str
    reads: list[str] = field(default_factory=list)
    puts: list[str] = field(default_factory=list)
    frozen: list[Frozen] = field(default_factory=list)

    @property
    def reasons(self) -> str:
        return "\n".join(f"{f.size} channels stay: {f.reason} ({f.where})" for f in self.frozen)


def draw_channels(
    path: str | os.PathLike[str], title: str, sites: Sites, widths: Widths | None = None
) -> Path:
    """Write the drawing of a traced model; `widths` are those before and after a plan, by site.

    >>> import tempfile, torch, obc
    >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> page = tempfile.mkdtemp() + "/net.html"
    >>> draw_channels(page, "a net", obc.trace(net, torch.zeros(1, 4)), {"0": (8, 3)}).name
    'net.html'
    """
    text = drawing(title, sites, widths or {}).encode()
    write(path, lambda aside: aside.write_bytes(text))
    return Path(path)


def drawing(title: str, sites: Sites, widths: Widths) -> str:
    """The page as text; nothing in it is taken for markup."""
    layers = run_order(sites)
    place = {layer: number for number, layer in enumerate(layers)}
    bands = _bands(sites, place, widths)
    rows = _rows(sites, layers, widths)
    template = Environment(
        loader=PackageLoader("obc.reporting"), autoescape=True, undefined=StrictUndefined
    ).get_template("channels.html")
    return template.render(
        title=title,
        bands=bands,
        rows=rows,
        frozen=sites.frozen,
        lanes=1 + max((band.lane for band in bands), default=0),
        channels=sum(before for _, (before, _) in _known(sites, widths)),
        kept=sum(after for _, (_, after) in _known(sites, widths)) if widths else None,
        row=ROW,
        lane=LANE,
    )


def run_order(sites: Sites) -> list[str]:
    """The layers of sites and frozen channels in the order they run.

    Members of a site, sites, and frozen channels are each in that order; layers that none of
    these chains compares are taken as the model defines them, a norm behind its layer.

    >>> from obc.tracing.sites import Frozen
    >>> run_order(Sites([], [Frozen("b", 1, "", "", ""), Frozen("a", 1, "", "", "")]))
    ['b', 'a']
    """
    chains = [_layers(site) for site in sites]
    chains.append(list(dict.fromkeys(layers[0] for layers in chains)))
    chains.append(list(dict.fromkeys(f.layer for f in sites.frozen)))
    defined = [name.rpartition(".")[0] or _TRUNK for name in sites.shapes]
    number = {layer: n for n, layer in enumerate(dict.fromkeys(defined))}
    before: dict[str, set[str]] = {layer: set() for chain in chains for layer in chain}
    for chain in chains:
        for earlier, later in pairwise(chain):
            before[later].add(earlier)
    norms = sites.wiring.before
    order: dict[str, None] = {}
    last = ""
    while before:
        # Parameters of one module may be used far apart: then chains disagree, and all may come.
        ready = [layer for layer, names in before.items() if not names - order.keys()]
        last = min(ready or before, key=lambda n: (norms.get(n) != last, number.get(n, 0)))
        order[last] = None
        del before[last]
    return list(order)


def _layers(site: Site) -> list[str]:
    return list(dict.fromkeys(m.layer or _TRUNK for m in site.members))


def _known(sites: Sites, widths: Widths) -> list[tuple[Site, tuple[int, int]]]:
    return [(site, widths.get(site.name, (site.size, site.size))) for site in sites]


def _bands(sites: Sites, place: Mapping[str, int], widths: Widths) -> list[Band]:
    most = max((before for _, (before, _) in _known(sites, widths)), default=1)
    ends: list[int] = []  # the last row of each lane that is taken
    bands = []
    for number, (site, (before, after)) in enumerate(_known(sites, widths)):
        rows = [place[layer] for layer in _layers(site)]
        first, last = min(rows), max(rows)
        lane = next((n for n, end in enumerate(ends) if end < first), len(ends))
        ends[lane : lane + 1] = [last]
        width = _THIN + (_THICK - _THIN) * sqrt(before / most)
        marks = {(place[m.layer or _TRUNK], m.role): None for m in site.members}
        bands.append(
            Band(
                site.name,
                lane,
                _COLOURS[number % len(_COLOURS)],
                first,
                last,
                round(width, 1),
                round(max(width * after / before, 1.0), 1),
                f"{site.name}: {_change(before, after)} {'heads' if site.heads else 'channels'}, "
                f"{len(rows)} layers",
                [Mark(row, role) for row, role in marks],
            )
        )
    return bands


def _rows(sites: Sites, layers: Iterable[str], widths: Widths) -> list[Row]:
    rows = {layer: Row(layer) for layer in layers}
    for site, (before, after) in _known(sites, widths):
        size = _change(before, after) + (" heads" if site.heads else "")
        for role, layer in dict.fromkeys((m.role, m.layer or _TRUNK) for m in site.members):
            row = rows[layer]
            {"out": row.puts, "in": row.reads}.get(role, []).append(size)
    for frozen in sites.frozen:
        rows[frozen.layer].frozen.append(frozen)
        rows[frozen.layer].puts.append(str(frozen.size))
    return list(rows.values())


def _change(before: int, after: int) -> str:
    return str(before) if before == after else f"{before} → {after}"
