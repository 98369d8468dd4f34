"""What a run finds out about channel ids: which are tied, frozen, or left to choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

Pairs = tuple[Tensor, Tensor]


class Place(NamedTuple):
    """Where in the user's model something happened."""

    module: str
    op: str
    line: str

    def __str__(self) -> str:
        return ", ".join(part for part in (self.op, self.module or "the model", self.line) if part)


@dataclass(frozen=True)
class Reason:
    """Why channels are frozen, and where."""

    text: str
    place: Place


@dataclass(frozen=True)
class Option:
    """One way to keep the model's Python code running: these ids go together, those stay."""

    ties: tuple[Pairs, ...] = ()
    freeze: tuple[Tensor, ...] = ()

    @cached_property
    def pairs(self) -> list[Pairs]:
        """The ties as vectors, without what meets a fixed position."""
        return [
            (a, b) if fixed is None else (a[~fixed], b[~fixed]) for a, b, fixed in self._vectors
        ]

    @cached_property
    def meeting(self) -> list[Tensor]:
        """What meets a fixed position."""
        return [torch.maximum(a, b)[fixed] for a, b, fixed in self._vectors if fixed is not None]

    @cached_property
    def _vectors(self) -> list[tuple[Tensor, Tensor, Tensor | None]]:
        return [flat(a, b) for a, b in self.ties]


@dataclass
class Choice:
    """A place where the code allows several shapes of channel unit; the first that works is taken.

    Every choice ends in freezing all of its ids, so one always works.
    """

    place: Place
    ids: Tensor
    options: list[Option]
    reason: Reason
    cut: bool = False  # whether channels are cut apart here
    ruled_out: set[int] = field(default_factory=set)


@dataclass(eq=False)
class Pick:
    """A place where so many of the channels are picked by value, as a router picks experts.

    `followed` says that what they stand for was found to follow, expert by expert, `reason` why it
    does not. `times` is how often each was picked, and `rows` how many rows modules were called
    with until the next place.
    """

    ids: Tensor
    count: int
    place: Place
    followed: bool = False
    reason: Reason | None = None
    times: list[int] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)


class Listed(NamedTuple):
    """Experts that are modules of a list: the module that holds them, and their keys in it.

    `ids` are the channels of the router, one for each expert.
    """

    layer: str
    keys: tuple[str, ...]
    ids: Tensor
    place: Place


class Ledger:
    """Ids are issued in the order of the run, so the same run always issues the same ids."""

    def __init__(self) -> None:
        self.size = 0
        self._ties: list[tuple[Tensor, Tensor, Place]] = []
        self._ranges: dict[int, tuple[int, Tensor]] = {}  # ids as issued, by where they are
        self._links: dict[int, tuple[int, int]] = {}  # a range's first id to another's, and size
        # The range that other ids were tied to; with these, so that none takes their place.
        self._partners: dict[tuple[int, int], tuple[int, Tensor]] = {}
        self.frozen: list[tuple[Tensor, Reason]] = []
        self.choices: list[Choice] = []
        self._cuts: dict[tuple[object, ...], tuple[Tensor, int, set[int], Place]] = {}
        self.statistics: list[tuple[Tensor, Place]] = []  # channels that a mean or so runs over
        self.picks: list[Pick] = []
        self.lists: list[Listed] = []
        self.roles: dict[str, list[Tensor]] = {"out": [], "in": [], "head": [], "read": []}

    def fresh(self, count: int) -> Tensor:
        """Ids nobody has yet."""
        start, self.size = self.size, self.size + count
        ids = torch.arange(start, self.size)
        self._ranges[ids.data_ptr()] = (start, ids)
        return ids

    def start(self, ids: Tensor) -> int | None:
        """The first of these ids if they are all of a range as it was issued, in order."""
        start, issued = self._ranges.get(ids.data_ptr(), (None, ids))
        return start if ids.numel() == issued.numel() and ids.is_contiguous() else None

    def tie(self, a: Tensor, b: Tensor, place: Place) -> None:
        """These go together, position by position; an id that meets a fixed position stays."""
        if a is b:
            return
        same = a.shape == b.shape
        left, right = self.start(a), self.start(b)
        if same and right is not None and left is None:
            left = self._partner(a, right)
        if left is None or right is None or not same:
            self._ties.append((a, b, place))
        else:
            left, right = sorted((self.first(left), self.first(right)))
            if left != right:
                self._links[right] = (left, a.numel())

    def _partner(self, ids: Tensor, start: int) -> int | None:
        """The range that these ids were tied to before; if there is none, the one from `start`.

        Vectors of a norm meet the same channels one after the other, and go with the first.
        """
        if not ids.is_contiguous():
            return None
        key = (ids.data_ptr(), ids.numel())
        if key not in self._partners and bool((ids >= 0).all()):
            self._partners[key] = (start, ids)
            return None
        return self._partners.get(key, (None, ids))[0]

    def first(self, start: int) -> int:
        """Where the lowest range begins that goes with the one that begins here."""
        while start in self._links:
            start = self._links[start][0]
        return start

    def ranges(self) -> Tensor:
        """For each id the lowest that whole ranges tie it to."""
        of = torch.arange(self.size)
        for start, (_, count) in self._links.items():
            first = self.first(start)
            torch.arange(first, first + count, out=of[start : start + count])
        return of

    def ties(self) -> Iterator[Pairs]:
        """All other ties so far; what meets a fixed position is frozen, and left out."""
        for a, b, place in self._ties:
            left, right, fixed = flat(a, b)
            if fixed is not None:
                self.freeze(torch.maximum(left, right)[fixed], "meets channels that stay", place)
                left, right = left[~fixed], right[~fixed]
            yield left, right

    def whole(self, ids: Tensor, axes: Sequence[int], place: Place) -> Tensor:
        """Tie ids that differ along other axes than these; one id per index of the axes is left."""
        for axis in range(ids.ndim):
            if axis not in axes and ids.shape[axis] > 1:
                self.tie(ids.narrow(axis, 0, 1), ids, place)
                ids = ids.narrow(axis, 0, 1)
        return ids

    def freeze(self, ids: Tensor, text: str, place: Place) -> None:
        """These stay, for this reason."""
        ids = ids[ids >= 0]
        if ids.numel():
            self.frozen.append((ids, Reason(text, place)))

    def choose(
        self, place: Place, text: str, ids: Tensor, options: list[Option], cut: bool = False
    ) -> None:
        """Leave it to `solve` which option holds; freezing these ids is always the last."""
        if options:
            self.choices.append(Choice(place, ids[ids >= 0], options, Reason(text, place), cut))
        else:
            self.freeze(ids, text, place)

    def cut(self, ids: Tensor, dim: int, edges: Sequence[int], place: Place) -> None:
        """Channels are cut apart here; all cuts of one tensor are looked at together."""
        inner = {e for e in edges if 0 < e < ids.shape[dim]}
        if inner:
            key = (ids.data_ptr(), tuple(ids.shape), ids.stride(), dim)
            self._cuts.setdefault(key, (ids, dim, set(), place))[2].update(inner)

    def settle_cuts(self) -> None:
        """What keeps cuts right: equal parts shrink alike, or all before the last cut stays."""
        for ids, dim, edges, place in self._cuts.values():
            size, parts = ids.shape[dim], len(edges) + 1
            even = size % parts == 0 and sorted(edges) == list(
                range(size // parts, size, size // parts)
            )
            options = []
            if even:
                grid = ids.movedim(dim, 0).reshape(parts, size // parts, -1)
                options.append(Option(ties=((grid[:1].expand_as(grid[1:]), grid[1:]),)))
            else:
                options.append(Option())
            others = [d for d in range(ids.ndim) if d != dim and ids.shape[d] > 1]
            options += [Option(ties=slabs(ids, d)) for d in others]
            options.append(Option(freeze=(ids.narrow(dim, 0, max(edges)),)))
            self.choose(place, "cut at positions that do not follow", ids, options, cut=True)
        self._cuts.clear()

    def pick(self, ids: Tensor, count: int, place: Place) -> Pick:
        """So many of these are picked here; they stay unless what they number follows them."""
        self.picks.append(Pick(ids.reshape(-1), count, place))
        return self.picks[-1]

    def settle_picks(self) -> None:
        """Freeze what was picked for other ends than to choose among experts."""
        for pick in self.picks:
            if not pick.followed:
                reason = pick.reason or Reason("the order of channels matters", pick.place)
                self.freeze(pick.ids, reason.text, reason.place)

    def mark(self, role: str, ids: Tensor) -> None:
        """Remember what part these ids played."""
        self.roles[role].append(ids if ids.ndim == 1 else ids.reshape(-1))

    def marked(self, role: str, of: Tensor | None = None) -> Tensor:
        """A flag for each id: whether it played this part; with classes, whether its class did.

        A class is flagged at the id that it is called by, and nowhere else.
        """
        flags = torch.zeros(self.size, dtype=torch.bool)
        ranges: set[tuple[int, int]] = set()  # many ids play a part again and again
        for ids in self.roles[role]:
            start = self.start(ids)
            if start is not None:
                ranges.add((start if of is None else self.first(start), ids.numel()))
            else:
                ids = ids[ids >= 0]
                flags[ids if of is None else of[ids]] = True
        for start, count in ranges:
            if of is None:
                flags[start : start + count] = True
            else:
                flags.index_fill_(0, of[start : start + count], True)
        return flags


def flat(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Two sides of a tie as vectors, and where one of them is a fixed position, if anywhere.

    >>> flat(torch.tensor([0, -1]), torch.tensor([4]))
    (tensor([ 0, -1]), tensor([4, 4]), tensor([False,  True]))
    """
    if a.shape != b.shape:
        a, b = torch.broadcast_tensors(a, b)
    a, b = a.reshape(-1), b.reshape(-1)
    fixed = torch.minimum(a, b) < 0
    return a, b, fixed if fixed.any() else None


def any_between(flags: Tensor, starts: list[int], sizes: list[int]) -> list[bool]:
    """Whether any flag is set in each of many ranges.

    >>> any_between(torch.tensor([False, True, False]), [0, 2], [2, 1])
    [True, False]
    """
    if not starts:
        return []
    sums = torch.zeros(len(flags) + 1, dtype=torch.int32)  # half the memory: there are many
    torch.cumsum(flags, 0, out=sums[1:])
    first = torch.tensor(starts, dtype=torch.long)
    flagged: list[bool] = (sums[first + torch.tensor(sizes)] > sums[first]).tolist()
    return flagged


def slabs(ids: Tensor, axis: int) -> tuple[Pairs, ...]:
    """The ties that make each index along an axis one unit.

    >>> slabs(torch.tensor([[0, 1], [2, 3]]), 1)
    ((tensor([0, 1]), tensor([2, 3])),)
    """
    columns = ids.movedim(axis, -1).reshape(-1, ids.shape[axis])
    first = columns[:1].expand_as(columns[1:])
    return ((first.reshape(-1), columns[1:].reshape(-1)),)
