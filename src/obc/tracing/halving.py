"""Which of many groups of sites cannot be narrowed, in few attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

from obc.tracing.ledger import Place
from obc.tracing.sites import Site

Group = list[Site]


@dataclass
class Failure:
    """What went wrong in a narrower model, and where."""

    place: Place
    text: str


Attempt = Callable[[list[Site]], Failure | None]


def sort(
    groups: list[Group],
    attempt: Attempt,
    mend: Callable[[list[Site], Group, Failure], Group | None],
) -> tuple[list[Site], list[tuple[Group, Failure]]]:
    """The sites that pass all together, and the groups that fail beside them.

    What fails is halved until a single group is left; `mend` may know how to make that one pass.
    """
    fine: list[Site] = []
    failures: list[tuple[Group, Failure]] = []
    waiting = [groups]  # stretches in the order of the model, the next one last
    while waiting:
        stretch = waiting.pop()
        failure = attempt([*fine, *(site for group in stretch for site in group)])
        if failure is None:
            fine += [site for group in stretch for site in group]
        elif len(stretch) > 1:
            half = len(stretch) // 2
            waiting += [stretch[half:], stretch[:half]]
        else:
            mended = mend(fine, stretch[0], failure)
            if mended is None:
                failures.append((stretch[0], failure))
            else:
                fine += mended
    return fine, failures


def partners(groups: list[Group]) -> Iterator[tuple[list[Group], list[list[Site]]]]:
    """Groups whose widths may have to be equal, and which of their sites then are; many first.

    Those are groups with the same widths one by one, and groups that have one width throughout.

    >>> a, b, c = (Site(name, size, ()) for name, size in [("a", 8), ("b", 4), ("c", 8)])
    >>> [[[s.name for s in same] for same in equal] for _, equal in partners([[a, b], [c], [c, b]])]
    [[['a', 'c'], ['b', 'b']]]
    """
    by_widths: dict[tuple[int, ...], list[Group]] = {}
    for group in groups:
        sizes = tuple(site.size for site in group)
        by_widths.setdefault(sizes, []).append(group)
        if len(set(sizes)) == 1 < len(sizes):
            by_widths.setdefault(sizes[:1], []).append(group)
    for like in by_widths.values():
        for count in dict.fromkeys((len(like), 2)):
            for chosen in map(list, combinations(like, count)) if len(like) > 1 else ():
                one = len({len(group) for group in chosen}) > 1
                rows = [[s for g in chosen for s in g]] if one else zip(*chosen, strict=True)
                yield chosen, [list(row) for row in rows]
