"""`obc show`: what a model consists of."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from torch import nn

from obc.cli.arguments import DataOrNone, Ignore, Model, Shape, TaskName
from obc.cli.inputs import example_of, model_of, task_of
from obc.cli.output import Output, Result
from obc.costs.counting import Cost, cost
from obc.equivalent.attach import is_equivalent
from obc.equivalent.merge import merge
from obc.errors import ObcError
from obc.files.folder import PLAN
from obc.files.reference import reference
from obc.files.shards import is_saved
from obc.plans.plan import Plan
from obc.reporting.channels import Widths, draw_channels
from obc.surgery.record import applied
from obc.tracing.sites import Site, Sites
from obc.tracing.tracer import trace

_LAYERS = 10


def show(
    out: Output,
    model: Model,
    data: DataOrNone = None,
    task: TaskName = None,
    shape: Shape = None,
    ignore: Ignore = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the channels as a page, too.")
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="A plan of this model: its widths are drawn, too."),
    ] = None,
) -> Result:
    """Show which channels belong together, what can't be pruned and why, and what it costs.

    Example: obc show resnet56

    Example: obc show torchvision:mobilenet_v2 --input 1x3x224x224 --json

    Example: obc show resnet56 --html resnet56.html
    """
    if plan is not None and html is None:
        raise ObcError("a plan's widths are drawn on the page: say --html FILE, too")
    purpose = task_of(data, task, model) if data or task else None
    net = model_of(model, purpose)
    example = example_of(net, purpose, shape)
    if is_equivalent(net):
        merge(net)  # C and D are no layers of the model
    sites, costs = trace(net, example, ignore=ignore or ()), cost(net, example)
    name = f"{reference(net) or model} ({type(net).__name__})"
    out.say(f"{name}: {costs.macs:,} MACs, {costs.params:,} parameters")
    for cut in applied(net):
        out.say(cut.summary())
    out.say(_sites_table(sites), _statistics(sites), _frozen(sites), _costs_table(costs))
    single = _single(net, sites)
    if single:
        out.say(f"Down to one channel, so no longer sites: {_short(single)}")
    if sites.untouched:
        out.say(f"Not reached by this input, left as they are: {_short(list(sites.untouched))}")
    if html is not None:
        draw_channels(html, name, sites, _widths(net, sites, plan))
        out.say(f"drawn: {html}")
    return {
        "model": reference(net) or model,
        "macs": costs.macs,
        "params": costs.params,
        "sites": [_described(site) for site in sites],
        "frozen": [
            {"layer": f.layer, "channels": f.size, "reason": f.reason, "where": f.where}
            for f in sites.frozen
        ],
        "untouched": list(sites.untouched),
        "single": single,
        "layers": {n: {"macs": c.macs, "params": c.params} for n, c in costs.layers.items()},
    }


def _single(net: nn.Module, sites: Sites) -> list[str]:
    """Sites that a model was cut by and that have one channel left: a trace lists them no more."""
    left = {name: len(site.kept) for cut in applied(net) for name, site in cut.sites.items()}
    return [name for name, count in left.items() if count == 1 and name not in sites.names]


def _widths(net: nn.Module, sites: Sites, file: Path | None) -> Widths:
    """By site the widths before and after the plan in a file, or those that the model has had."""
    if file is not None:
        if file.name == PLAN and is_saved(file.parent):
            raise ObcError(
                f"{file} belongs to a saved model; obc show {file.parent} --html FILE draws it"
            )
        plan = Plan.load(file)
        plan.check(net)
        return {name: (site.size, len(site.kept)) for name, site in plan.sites.items()}
    before: dict[str, int] = {}
    for cut in applied(net):
        before = {name: site.size for name, site in cut.sites.items()} | before
    return {s.name: (before[s.name], s.size) for s in sites if s.name in before}


def _layers(site: Site, role: str) -> list[str]:
    return list(dict.fromkeys(m.layer for m in site.members if m.role == role))


def _described(site: Site) -> dict[str, Any]:
    return {
        "name": site.name,
        "channels": site.size,
        "heads": site.heads,
        "written by": _layers(site, "out"),
        "normed by": _layers(site, "norm"),
        "read by": _layers(site, "in"),
        "statistics": list(site.statistics),
    }


def _sites_table(sites: Sites) -> Table:
    total = sum(s.size for s in sites)
    table = Table(title=f"{len(sites)} sites, {total} channels to choose from")
    table.title_justify = "left"
    for column in ("site", "channels", "written by", "normed by", "read by"):
        right = column == "channels"
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for site in sites:
        size = f"{site.size} heads" if site.heads else str(site.size)
        table.add_row(site.name, size, *(_short(_layers(site, r)) for r in ("out", "norm", "in")))
    return table


def _statistics(sites: Sites) -> str:
    mixed = [site for site in sites if site.statistics]
    if not mixed:
        return "no mean, norm or softmax runs over channels that may go"
    places = "; ".join(f"{s.name} by {_short(list(s.statistics), 2)}" for s in mixed[:_LAYERS])
    more = f"; … {len(mixed) - _LAYERS} more sites" if len(mixed) > _LAYERS else ""
    return f"Statistics over these channels will run over the kept ones: {places}{more}"


def _short(names: list[str], most: int = 4) -> str:
    more = f", … {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _frozen(sites: Sites) -> Table | str:
    if not sites.frozen:
        return "nothing is frozen"
    title = "Frozen: what can't be pruned (reasons are explained in docs/refused.md)"
    table = Table(title=title, title_justify="left")
    for column in ("layer", "channels", "why", "where"):
        right = column == "channels"
        table.add_column(column, justify="right" if right else "left", overflow="fold")
    for f in sites.frozen:
        table.add_row(f.layer, str(f.size), f.reason, f.where)
    return table


def _costs_table(costs: Cost) -> Table:
    ranked = sorted(costs.layers.items(), key=lambda item: -item[1].macs)
    table = Table(title="The layers that cost most", title_justify="left")
    table.add_column("layer", overflow="fold")
    for column in ("MACs", "share", "parameters"):
        table.add_column(column, justify="right")
    for name, layer in ranked[:_LAYERS]:
        share = layer.macs / max(costs.macs, 1)
        table.add_row(name or "(itself)", f"{layer.macs:,}", f"{share:.1%}", f"{layer.params:,}")
    return table
