"""From a record to its figures; a part that is not there gives none."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from obc.reporting.axes import short
from obc.reporting.charts import Chart, Line, Style, histogram, lines, styles
from obc.reporting.record import (
    Curve,
    Fit,
    Heat,
    Judged,
    Recalibrated,
    Record,
    Scores,
    Step,
    Tuning,
)
from obc.tasks.evaluation import Metric

_INK = (42, 120, 214)  # --c1; the map's strength is in its alpha, so that any background shows
LOSS = Metric("loss", higher=False, digits=4)
REMOVED = (("channels", "channels"), ("params", "parameters"), ("macs", "MACs"))


@dataclass(frozen=True)
class Inner:
    """A bar in another, in per cent of the longest; there are shades 1 to 4 of one colour."""

    name: str
    value: str
    share: float
    shade: int


@dataclass(frozen=True)
class Bars:
    """One row: a bar, its value in words, and the bars that lie in it."""

    name: str
    before: str
    share: float
    after: list[Inner]


@dataclass(frozen=True)
class Picture:
    """A heat map as a PNG in a data URL, with the places of the lines between filters."""

    layer: str
    note: str
    url: str
    side: int
    between: list[int]
    most: str


def widths(record: Record) -> list[Bars]:
    """Each site before, and after each plan."""
    if record.widths is None or not record.widths.before:
        return []
    widths, longest = record.widths, max(record.widths.before.values()) or 1
    return [
        Bars(
            name,
            str(before),
            100 * before / longest,
            [
                Inner(plan, str(after[name]), 100 * after[name] / longest, min(number, 4))
                for number, (plan, after) in enumerate(widths.after.items(), 1)
            ],
        )
        for name, before in widths.before.items()
    ]  # fmt: skip


@dataclass(frozen=True)
class Errors:
    """The errors of one recalibration by layer, those of the outputs last, and what was left."""

    plan: str
    lead: str
    rows: list[Bars]
    alone: list[str]


def errors(recalibrated: Sequence[Recalibrated]) -> list[Errors]:
    """Each weight's error when it was cut, and after it was fitted."""
    return [
        Errors(
            account.plan,
            _outcome(account),
            _error_bars(account),
            [f"{fit.name}: {fit.note}" for fit in account.fits if not fit.kept and fit.note],
        )
        for account in recalibrated
    ]


def _outcome(account: Recalibrated) -> str:
    if not account.kept:
        return "No better on held-out samples: the model was left as it was."
    changed = sum(fit.kept for fit in account.fits)
    return f"{changed} of {len(account.fits)} weights refitted on {account.samples} samples."


def _error_bars(account: Recalibrated) -> list[Bars]:
    outputs = Fit(name="outputs of the model", before=account.before, after=account.after)
    pairs = [
        (fit.name, fit.before, fit.after)
        for fit in (*account.fits, outputs)
        if fit.before is not None and fit.after is not None
    ]
    longest = max((max(before, after) for _, before, after in pairs), default=0.0) or 1.0
    return [
        Bars(
            name,
            f"{before:.2g}",
            100 * before / longest,
            [Inner("recalibrated", f"{after:.2g}", 100 * after / longest, 1)],
        )
        for name, before, after in pairs
    ]


def step_charts(steps: Sequence[Step], metric: Metric) -> list[Chart]:
    """What is left of MACs, parameters and channels, and what is measured on the way."""
    if len(steps) < 2:
        return []
    number = [float(s.step) for s in steps]
    kinds: list[tuple[str, Callable[[Step], int]]] = [
        ("MACs", lambda s: s.macs),
        ("parameters", lambda s: s.params),
        ("channels", lambda s: s.channels),
    ]
    left = [
        Line(name, number, [100 * of(s) / of(steps[0]) for s in steps], Style(False, colour))
        for colour, (name, of) in enumerate(kinds, 1)
        if of(steps[0])
    ]
    charts = [lines("What is left, %", "step", left, whole=True, zero=True)] if left else []
    for kind, of in judged(metric):
        known = [(float(s.step), v) for s in steps if (v := getattr(s, of)) is not None]
        if len(known) > 1:
            xs, ys = zip(*known, strict=True)
            line = Line(kind.label or kind.name, xs, ys, Style(False, 1))
            charts.append(_chart(kind, "step", [line], whole=True))
    return charts


def frontier_charts(places: Sequence[Judged], metric: Metric) -> list[Chart]:
    """The metric against the cost, and how much worse it is with the bound of that."""
    values, losses = [], []
    for colour, split in enumerate(dict.fromkeys(p.split for p in places), 1):
        of_split = [p for p in places if p.split == split]
        if len(of_split) > 1:
            xs = [p.macs for p in of_split]
            values.append(Line(split, xs, [p.quality for p in of_split], Style(False, colour)))
            losses.append(Line(split, xs, [p.loss for p in of_split], Style(False, colour)))
            bounds = [p.bound for p in of_split]
            losses.append(Line(f"{split}, at most", xs, bounds, Style(True, colour)))
    if not values:
        return []
    fewer = "times fewer MACs"
    same = places[0].metric == metric.name  # or another of the task's
    above = _chart(metric, fewer, values) if same else lines(places[0].metric, fewer, values)
    return [above, lines("Worse by, with 95% bound", fewer, losses)]


def judged(metric: Metric) -> list[tuple[Metric, str]]:
    """What models are judged by, and the field it is kept in: the metric that counts, the loss."""
    return [(metric, "quality"), *([(LOSS, "loss")] if metric.name != "loss" else [])]


def heading(metric: Metric) -> str:
    """What stands above a figure: "Top-1, % ↑"; the arrow says which way is better.

    >>> heading(Metric("perplexity", higher=False))
    'Perplexity ↓'
    """
    label = metric.label or metric.name
    unit = f", {metric.unit}" if metric.unit else ""
    return f"{label[:1].upper()}{label[1:]}{unit} {metric.arrow}"


def _chart(metric: Metric, x_label: str, drawn: Sequence[Line], whole: bool = False) -> Chart:
    """Lines of a metric; one without a bound may take a logarithmic axis."""
    most = metric.most
    return lines(heading(metric), x_label, drawn, whole=whole, log=most is None, most=most)


def score_charts(scores: Sequence[Scores]) -> list[Chart]:
    """One histogram for each criterion, with its cut."""
    chosen = styles([s.criterion for s in scores])
    return [
        histogram(
            s.criterion,
            "score, logarithmic" if s.log else "score",
            s.edges,
            s.counts,
            log=s.log,
            cut=s.cut,
            colour=chosen[s.criterion].colour,
            note=f"{s.zeros} more channels have the score 0" if s.zeros else "",
        )
        for s in scores
    ]


def tuning_charts(curves: Sequence[Tuning], metric: Metric) -> list[tuple[str, list[Chart]]]:
    """For each plan: the metric, the loss and the learning rate of all its curves."""
    chosen = styles(list(dict.fromkeys(c.name for c in curves)))
    figures = []
    for plan in dict.fromkeys(c.plan for c in curves):
        own = [c for c in curves if c.plan == plan]
        charts = []
        for title, key, most in (
            (heading(metric), "quality", metric.most),
            ("Training loss ↓", "loss", None),
            ("Learning rate", "lr", None),
        ):
            drawn = []
            for c in own:
                known = [(e.epoch, v) for e in c.epochs if (v := getattr(e, key)) is not None]
                if known:
                    xs, ys = zip(*known, strict=True)
                    drawn.append(Line(c.name, xs, ys, chosen[c.name]))
            if drawn:
                charts.append(
                    lines(
                        title,
                        "epoch",
                        drawn,
                        whole=True,
                        log=key != "lr" and most is None,
                        most=most,
                    )
                )
        figures.append((plan, charts))
    return figures


def comparison_charts(curves: Sequence[Curve], metric: Metric) -> list[Chart]:
    """The metric, then the loss, over what was removed."""
    charts = []
    for kind, of in judged(metric):
        for key, words in REMOVED:
            drawn = comparison_lines(curves, key, of)
            if drawn:
                charts.append(_chart(kind, f"{words} removed, %", drawn))
    return charts


def best_points(curves: Sequence[Curve], metric: Metric) -> list[set[int]]:
    """For each curve, which of its points no other curve beats at the same place."""
    places = max((len(c.points) for c in curves), default=0)
    best: list[set[int]] = [set() for _ in curves]
    for place in range(1, places):  # before anything is removed all are the same
        column = [c.points[place].quality if place < len(c.points) else None for c in curves]
        values = [v for v in column if v is not None]
        for number, value in enumerate(column):
            if value is not None and not any(metric.better(other, value) for other in values):
                best[number].add(place)
    return best


def comparison_lines(curves: Sequence[Curve], key: str, of: str) -> list[Line]:
    """Quality or loss of each criterion over one kind of what was removed, in per cent."""
    chosen = styles([c.criterion for c in curves])
    drawn = []
    for curve in curves:
        points = sorted(
            (100 * getattr(p, key), getattr(p, of), getattr(p, f"{of}_std") or 0.0)
            for p in curve.points
            if getattr(p, of) is not None
        )
        if points:
            x, y, spread = zip(*points, strict=True)
            drawn.append(Line(curve.criterion, x, y, chosen[curve.criterion], spread))
    return sorted(drawn, key=lambda line: line.style)


def times(curves: Sequence[Curve]) -> list[Bars]:
    """Seconds per scoring step."""
    known = [(c.criterion, c.seconds) for c in curves if c.seconds is not None]
    longest = max((s for _, s in known), default=0.0) or 1.0
    return [Bars(name, f"{s:.3g} s", 100 * s / longest, []) for name, s in known]


def picture(heat: Heat) -> Picture:
    """The map as an image: strength goes with the square root, or large values hide the rest."""
    from matplotlib.image import imsave  # takes long to load

    values = np.asarray(heat.values)
    most = float(values.max())
    image = np.empty((*values.shape, 4), dtype=np.uint8)
    image[..., :3] = _INK
    image[..., 3] = np.rint(255 * np.sqrt(values / (most or 1.0)))
    buffer = io.BytesIO()
    imsave(buffer, image, format="png")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    side = len(values)
    between = list(range(heat.block, side, heat.block)) if heat.block else []
    return Picture(heat.layer, heat.note, url, side, between, short(most))
