"""Which of many groups of sites cannot be narrowed, in few attempts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations

from obc.tracing.ledger import Place
from obc.tracing.sites import Site

Group = list[Site]
_PLACES = 2  # so many layers of a group may fail before all of it is given up


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
    passed_by: Iterable[str] = (),
) -> tuple[list[Site], list[tuple[Group, Failure]]]:
    """The sites that pass all together, and the groups that fail beside them.

    What fails is parted until a single group is left; `mend` may know how to make that one pass.
    In modules that are `passed_by` an attempt shows nothing: their sites go the way of their group.
    """
    fine: list[Site] = []
    failures: list[tuple[Group, Failure]] = []
    waiting = [groups]  # the next stretch is the last one
    while waiting:
        stretch = waiting.pop()
        failure = attempt([*fine, *(site for group in stretch for site in group)])
        if failure is None:
            fine += [site for group in stretch for site in group]
        elif len(stretch) > 1:
            waiting += _parts(stretch, failure.place.module)
        else:
            mended = mend(fine, stretch[0], failure)
            if mended is None:
                ran = not any(_inside(site, path) for site in stretch[0] for path in passed_by)
                beside = partial(_beside, attempt, fine)
                bad, mended = _blamed(stretch[0], failure, beside) if ran else (stretch[0], [])
                failures.append((bad, failure))
            fine += mended
    return fine, failures


def _beside(attempt: Attempt, fine: list[Site], sites: list[Site]) -> Failure | None:
    return attempt([*fine, *sites])


def _parts(stretch: list[Group], module: str) -> list[list[Group]]:
    """Groups with layers in the module that failed, and the others; or else two halves.

    The others come last, to be tried first: they are likely to pass all at once.
    """
    near = [group for group in stretch if any(_inside(site, module) for site in group)]
    far = [group for group in stretch if not any(_inside(site, module) for site in group)]
    half = len(stretch) // 2
    return [near, far] if near and far else [stretch[half:], stretch[:half]]


def _blamed(group: Group, failure: Failure, attempt: Attempt) -> tuple[Group, Group]:
    """The sites of a group that are to blame, and those that pass without them.

    Where many layers fail, so will all of their kind, and are not tried one by one.
    """
    rest = group
    for _ in range(_PLACES):
        left = [site for site in rest if not _inside(site, failure.place.module)]
        if not left or len(left) == len(rest):
            break
        rest = left
        again = attempt(rest)
        if again is None:
            return [site for site in group if not any(site is other for other in rest)], rest
        failure = again
    return group, []


def _inside(site: Site, module: str) -> bool:
    """Whether a site has a layer in a module."""
    return any(name.startswith(f"{module}.") for m in site.members for name in m.names)


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
