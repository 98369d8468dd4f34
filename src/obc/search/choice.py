"""Which sites take part: by kind, such as heads, or by name; and what to say of those that did not.

A site is of the kind "heads"; "experts", whole ones of a mixture; "hidden", the residual width,
which layers of several blocks write; or "ffn", the inner channels of one block.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from obc.errors import ObcError, closest
from obc.tracing.sites import Site, Sites

KINDS = ("ffn", "heads", "experts", "hidden")


def kind_of(site: Site) -> str:
    """The kind of a site."""
    if site.heads:
        return "heads"
    if site.picked:
        return "experts"
    writers = {m.layer.rpartition(".")[0] for m in site.members if m.role == "out"}
    # An expansion and the depthwise layer behind it are two, and still inside one block.
    return "hidden" if len(writers) > 2 else "ffn"


def chosen(sites: Sites, names: Sequence[str]) -> set[str]:
    """The names of the sites that kinds and patterns stand for; of all sites if there are none."""
    if not names:
        return set(sites.names)
    result: set[str] = set()
    for name in names:
        hits = [s.name for s in sites if name in (kind_of(s), s.name)]
        hits = hits or fnmatch.filter(sites.names, name)
        if not hits and name not in KINDS:
            raise ObcError(
                f"sites: no site named '{name}'{closest(name, sites.names)}; "
                f"kinds are {', '.join(KINDS)}",
                section="names",
            )
        result.update(hits)
    if not result:
        raise ObcError(f"sites: the model has none of {', '.join(names)}")
    return result


def never_chosen(
    sites: Sites,
    kept: Mapping[str, Sequence[int]],
    free: Iterable[str],
    scores: Mapping[str, tuple[Tensor, Tensor]],
    removed: Mapping[str, Mapping[int, float]],
) -> list[str]:
    """A line for each kind of which no channel went, and why.

    Args:
        sites: of the whole model.
        kept: the channels that each site keeps.
        free: names of the sites that may lose channels.
        scores: channels and scores of the last scoring, by site.
        removed: the scores of all channels that went, by site.
    """
    kinds: dict[str, list[Site]] = {}
    for site in sites:
        kinds.setdefault(kind_of(site), []).append(site)
    if len(kinds) < 2:
        return []
    highest = max((score for gone in removed.values() for score in gone.values()), default=None)
    lines, open_to = [], set(free)
    for kind, group in kinds.items():
        if any(len(kept[s.name]) < s.size for s in group):
            continue
        if not any(s.name in open_to for s in group):
            lines.append(f"{kind}: kept whole, as asked for")
            continue
        lowest = min(
            (float(scores[s.name][1].min()) for s in group if s.name in scores), default=None
        )
        if lowest is not None and highest is not None:
            lines.append(
                f"{kind}: none was chosen; the lowest score is {lowest:.3g}, "
                f"and the highest that went {highest:.3g}"
            )
    return lines
