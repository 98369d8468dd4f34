"""Charts as places on paper: what the template needs to draw lines, bands and bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from obc.reporting.axes import Axis, fitting, short

WIDTH, HEIGHT = 400, 232
LEFT, RIGHT, TOP, BOTTOM = 46, 390, 10, 196
_MARKED = 30  # more points than this are a line without marks

# A criterion has the same colour in every figure; --c1 … --c8 are in style.css.
COLOURS = {
    "jacobian": 1, "taylor": 2, "hessian": 3, "l1": 4, "random": 5, "l2": 6, "fpgm": 7, "whc": 8,
    "EP": 1, "naive": 2,
}  # fmt: skip


@dataclass(frozen=True, order=True)
class Style:
    """A colour of style.css, dashed for those that come after all colours are used.

    Lines stand in the legend in this order, and the first lies on top.
    """

    dashed: bool
    colour: int


def styles(names: Sequence[str]) -> dict[str, Style]:
    """One style for each name: the known ones their own, the others what is left.

    What stands behind a comma is another line of the same colour: "jacobian, recalibrated".

    >>> styles(["mine", "jacobian"])["jacobian"].colour
    1
    """
    chosen: dict[str, Style] = {}
    free = [Style(d, c) for d in (False, True) for c in range(1, 9)]
    for name in names:
        criterion, _, further = name.partition(", ")
        known = Style(bool(further), COLOURS[criterion]) if criterion in COLOURS else None
        if known in free:
            chosen[name] = known
            free.remove(known)
    for name in names:
        if name not in chosen:
            chosen[name] = free.pop(0) if free else Style(True, 8)
    return chosen


@dataclass(frozen=True)
class Line:
    """Points to be joined; with `spread`, a band of so much above and below."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    style: Style
    spread: Sequence[float] | None = None


@dataclass(frozen=True)
class Mark:
    x: float
    y: float
    tip: str


@dataclass(frozen=True)
class Drawn:
    """A line as SVG paths."""

    name: str
    style: Style
    path: str
    band: str
    marks: list[Mark]


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    tip: str
    muted: bool


@dataclass(frozen=True)
class Rule:
    """An upright line with a few words beside it."""

    x: float
    text: str
    anchor: str


@dataclass(frozen=True)
class Chart:
    title: str
    x_label: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Drawn] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    rule: Rule | None = None
    note: str = ""
    colour: int = 1

    @property
    def words(self) -> str:
        """The figure for those who cannot see it."""
        names = ", ".join(line.name for line in self.lines)
        return f"{self.title} over {self.x_label}" + (f": {names}" if names else "")


def lines(
    title: str,
    x_label: str,
    given: Sequence[Line],
    *,
    whole: bool = False,
    zero: bool = False,
    log: bool = False,
    most: float | None = None,
) -> Chart:
    """A line chart; `whole` for x of whole numbers, `most` for y that cannot be more."""
    xs = [v for line in given for v in line.x]
    ys = [v + s * sign for line in given for v, s in _spread(line) for sign in (-1, 1)]
    if most is not None:
        ys = [min(y, most) for y in ys]
    if min(v for line in given for v in line.y) >= 0:  # a band may not lead below what can be
        ys = [max(y, 0.0) for y in ys]
    x_axis = Axis(min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1, LEFT, RIGHT)
    y_axis = fitting(ys, BOTTOM, TOP, zero=zero, log=log)
    ordered = sorted(given, key=lambda line: line.style)
    drawn = [_drawn(line, x_axis, y_axis) for line in ordered]
    return Chart(title, x_label, x_axis.ticks(whole=whole), y_axis.ticks(), drawn)


def _spread(line: Line) -> list[tuple[float, float]]:
    return list(zip(line.y, line.spread or [0.0] * len(line.y), strict=True))


def _drawn(line: Line, x_axis: Axis, y_axis: Axis) -> Drawn:
    xs, ys = [x_axis.at(v) for v in line.x], [y_axis.at(v) for v in line.y]
    band = ""
    if line.spread is not None and any(line.spread):
        above = [y_axis.at(v + s) for v, s in _spread(line)]
        below = [y_axis.at(v - s) for v, s in _spread(line)]
        around = [*zip(xs, above, strict=True), *reversed(list(zip(xs, below, strict=True)))]
        band = _path(around) + "Z"
    marks = []
    if len(xs) <= _MARKED:
        for x, y, at, (value, spread) in zip(xs, ys, line.x, _spread(line), strict=True):
            more = f" ± {short(spread)}" if line.spread is not None else ""
            marks.append(Mark(x, y, f"{line.name}, {short(at)}: {short(value)}{more}"))
    return Drawn(line.name, line.style, _path(list(zip(xs, ys, strict=True))), band, marks)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def histogram(
    title: str,
    x_label: str,
    edges: Sequence[float],
    counts: Sequence[int],
    *,
    log: bool,
    cut: float | None,
    colour: int,
    note: str = "",
) -> Chart:
    """Bars over a linear or logarithmic axis; those below the cut are muted."""
    x_axis = Axis(edges[0], edges[-1], LEFT, RIGHT, log)
    y_axis = fitting(counts, BOTTOM, TOP, zero=True)
    bars = []
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        if count:
            left, right, top = x_axis.at(low), x_axis.at(high), y_axis.at(count)
            gone = cut is not None and high <= cut
            tip = f"{short(low)} to {short(high)}: {count}"
            width = round(max(right - left - 1, 0.5), 2)
            bars.append(Bar(left, top, width, round(BOTTOM - top, 2), tip, gone))
    rule = None
    if cut is not None:
        x = x_axis.at(cut)
        rule = Rule(x, f"cut {short(cut)}", "end" if x > (LEFT + RIGHT) / 2 else "start")
    return Chart(
        title, x_label, x_axis.ticks(), y_axis.ticks(), bars=bars, rule=rule, note=note,
        colour=colour,
    )  # fmt: skip
