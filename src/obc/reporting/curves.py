"""Curves of a comparison as a PNG or SVG file, for papers and slides."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from obc.disk.writing import write
from obc.errors import ObcError
from obc.reporting.axes import spans_decades
from obc.reporting.charts import Line
from obc.reporting.figures import REMOVED, comparison_lines, heading, judged
from obc.reporting.record import ACCURACY, Curve, Point
from obc.tasks.evaluation import Metric

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = (".png", ".svg")
_LETTERS = 140  # that fit in a line across the figure
# As in style.css.
_COLOURS = (
    "#2a78d6", "#eb6834", "#1baf7a", "#c98a00", "#6b7079", "#e34948", "#d0588c", "#4a3aa7",
)  # fmt: skip


def draw_comparison(
    curves: Sequence[Curve],
    path: str | os.PathLike[str],
    title: str = "",
    metric: Metric = ACCURACY,
) -> Path:
    """Metric and loss over channels, parameters and MACs removed, mean ± std; returns the path.

    The end of the path, .png or .svg, says which kind.
    """
    target = Path(path)
    if target.suffix not in _KINDS:
        raise ObcError(f"a figure is a .png or .svg file, not '{target.name}'")
    if not curves:
        raise ObcError("there are no curves to draw")
    from matplotlib import rc_context  # takes long to load

    # With a salt of its own an SVG is the same each time it is drawn; its words stay words.
    with rc_context({"svg.hashsalt": "obc", "svg.fonttype": "none", "font.size": 9}):
        figure = _figure(curves, title, metric)
        meta = {"Date": None} if target.suffix == ".svg" else {}
        kind = target.suffix[1:]
        write(target, lambda aside: figure.savefig(aside, format=kind, dpi=160, metadata=meta))
    return target


def _figure(curves: Sequence[Curve], title: str, metric: Metric) -> Figure:
    from matplotlib.figure import Figure

    known = {of for c in curves for p in c.points for of in ("quality", "loss") if _has(p, of)}
    kinds = [(kind, of) for kind, of in judged(metric) if of in known]
    figure = Figure(figsize=(11, 0.8 + 2.9 * len(kinds)), layout="constrained")
    every = figure.subplots(len(kinds), len(REMOVED), sharey="row", squeeze=False)
    for row, (kind, of) in zip(every, kinds, strict=True):
        for axes, (key, words) in zip(row, REMOVED, strict=True):
            handles = _draw(axes, comparison_lines(curves, key, of), kind)
            axes.set_xlabel(f"{words} removed, %")
            if of == "quality":  # which every curve has
                named = handles
        row[0].set_ylabel(heading(kind))
    _legend(figure, named)
    if title:
        figure.suptitle(title, parse_math=False)
    return figure


def _has(point: Point, of: str) -> bool:
    return getattr(point, of) is not None


def _draw(axes: Any, drawn: Sequence[Line], metric: Metric) -> dict[str, Any]:
    handles = {}
    for line in reversed(drawn):  # the first one lies on top
        colour = _COLOURS[line.style.colour - 1]
        dash = "--" if line.style.dashed else "-"
        (handles[line.name],) = axes.plot(line.x, line.y, dash, color=colour, marker="o", ms=3)
        if line.spread is not None and any(line.spread):
            low = [y - s for y, s in zip(line.y, line.spread, strict=True)]
            high = [y + s for y, s in zip(line.y, line.spread, strict=True)]
            axes.fill_between(line.x, low, high, color=colour, alpha=0.15, lw=0)
    if metric.most is not None:
        axes.set_ylim(0, 1.01 * metric.most)
    elif drawn and spans_decades(y for line in drawn for y in line.y):
        axes.set_yscale("log")
    axes.grid(alpha=0.3, lw=0.5)
    axes.spines[["top", "right"]].set_visible(False)
    return dict(reversed(handles.items()))


def _legend(figure: Figure, handles: dict[str, Any]) -> None:
    """Names as they are: matplotlib hides those that begin with _ and reads $…$ as formulas."""
    lines, blank = list(handles.values()), [" "] * len(handles)
    columns = max(1, _LETTERS // (max(map(len, handles)) + 8))  # 8 for the line and the space
    legend = figure.legend(
        lines, blank, loc="outside lower center", ncols=min(columns, len(lines)), frameon=False
    )
    for text, name in zip(legend.get_texts(), handles, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
