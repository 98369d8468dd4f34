"""`obc.report`: one HTML page that needs nothing but itself."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from obc.disk.location import location
from obc.disk.writing import write
from obc.reporting import charts, figures
from obc.reporting.axes import short
from obc.reporting.record import Latency, Record
from obc.tasks.evaluation import Metric

PAGE = "report.html"


def report(folder: str | os.PathLike[str]) -> Path:
    """Draw `report.html` from the `record.json` in a run's folder; returns the page's path.

    The page works from disk, without network or scripts, in light and dark, on paper and phones.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> _ = Record(title="a run", command="obc demo").save(folder)
    >>> report(folder).name
    'report.html'
    """
    path = location(folder, "folder") / PAGE
    text = page(Record.load(folder)).encode()
    write(path, lambda aside: aside.write_bytes(text))
    return path


def page(record: Record) -> str:
    """The page as text; everything from the record is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # not for those who only prune

    drawing = Environment(
        loader=PackageLoader("obc.reporting"), autoescape=True, undefined=StrictUndefined
    )
    size = {
        "width": charts.WIDTH, "height": charts.HEIGHT, "left": charts.LEFT,
        "right": charts.RIGHT, "top": charts.TOP, "bottom": charts.BOTTOM,
    }  # fmt: skip
    return drawing.get_template("page.html").render(
        record=record,
        size=size,
        facts=_facts(record),
        made=_made(record),
        table=_table(record.latency, record.metric),
        widths=figures.widths(record),
        errors=figures.errors(record.recalibration),
        steps=figures.step_charts(record.steps, record.metric),
        frontier=figures.frontier_charts(record.frontier, record.metric),
        scores=figures.score_charts(record.scores),
        tuning=figures.tuning_charts(record.tuning, record.metric),
        comparison=figures.comparison_charts(record.comparison, record.metric),
        numbers=_numbers(record),
        times=figures.times(record.comparison),
        seeds=_seeds(record),
        heats=[figures.picture(h) for h in record.heats],
    )


def _seeds(record: Record) -> int | None:
    """Over how many seeds the comparison was repeated, if all its curves agree."""
    counts = {c.seeds for c in record.comparison}
    return counts.pop() if len(counts) == 1 else None


def _facts(record: Record) -> list[str]:
    day, _, clock = record.created.replace("+00:00", " UTC").partition("T")
    return [fact for fact in (record.model, record.data, f"{day} {clock}".strip()) if fact]


def _made(record: Record) -> list[tuple[str, str]]:
    facts: list[tuple[str, object]] = [
        ("model", record.model),
        ("data", record.data),
        ("measured on", record.protocol),
        ("seed", record.seed),
        ("commit", record.commit),
    ]
    if record.environment is not None:
        own = record.environment
        facts += [
            ("machine", own.machine),
            ("cores, threads used", f"{own.cores}, {own.threads}"),
            ("system", own.system),
            ("Python", own.python),
            ("torch", own.torch),
            ("obc", own.obc),
        ]
    facts.append(("made", record.created))
    return [(name, str(value)) for name, value in facts if value is not None]


def _numbers(record: Record) -> _Numbers:
    """All points of a comparison; the best at each place is marked, whichever way is better."""
    kinds = [(kind, of) for kind, of in figures.judged(record.metric) if of == "quality"]
    if any(p.loss is not None for c in record.comparison for p in c.points):
        kinds = figures.judged(record.metric)
    best = figures.best_points(record.comparison, record.metric)
    rows = [
        _Measured(
            curve.criterion,
            [f"{100 * share:.1f} %" for share in (point.channels, point.params, point.macs)],
            [_spread(kind, getattr(point, of), getattr(point, f"{of}_std")) for kind, of in kinds],
            place in best[number],
        )
        for number, curve in enumerate(record.comparison)
        for place, point in enumerate(curve.points)
    ]
    return _Numbers([kind.title for kind, _ in kinds], rows)


def _spread(metric: Metric, value: float | None, std: float | None) -> str:
    if value is None:
        return "not finite"
    spread = "" if std is None else f" ± {std:.{metric.digits}f}"
    return f"{value:.{metric.digits}f}{spread}"


@dataclass(frozen=True)
class _Measured:
    criterion: str
    removed: list[str]
    values: list[str]
    best: bool


@dataclass(frozen=True)
class _Numbers:
    heads: list[str]
    rows: list[_Measured]


@dataclass(frozen=True)
class _Row:
    name: str
    cells: list[tuple[str, str]]


@dataclass(frozen=True)
class _Table:
    heads: list[str]
    rows: list[_Row]


def _table(models: list[Latency], metric: Metric) -> _Table:
    """Columns that any model fills; what became smaller is also told as a factor of the first."""
    columns = [
        (metric.title, "quality", metric.text, False),
        ("MACs", "macs", short, True),
        ("parameters", "params", short, True),
        ("on disk", "size", lambda v: f"{short(v)}B", True),
        ("time", "milliseconds", lambda v: f"{v:.3g} ms", True),
    ]
    used = [c for c in columns if any(getattr(m, c[1]) is not None for m in models)]
    rows = []
    for m in models:
        cells = []
        for _, key, text, relative in used:
            value, first = getattr(m, key), getattr(models[0], key)
            factor = ""
            if relative and value and first and m is not models[0]:
                factor = f"÷ {first / value:.2f}"
            cells.append(("" if value is None else text(value), factor))
        rows.append(_Row(m.name, cells))
    return _Table([c[0] for c in used], rows)
