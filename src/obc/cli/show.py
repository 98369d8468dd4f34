"""`obc show`: what a model consists of."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from obc.cli.arguments import DataOrNone, Ignore, Model, Shape, TaskName
from obc.cli.inputs import example_of, model_of, task_of
from obc.cli.output import Output, Result
from obc.costs.counting import Cost, cost
from obc.files.reference import reference
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
) -> Result:
    """Show which channels belong together, what can't be pruned and why, and what it costs.

    Example: obc show resnet56

    Example: obc show torchvision:mobilenet_v2 --input 1x3x224x224 --json
    """
    purpose = task_of(data, task, model) if data or task else None
    net = model_of(model, purpose)
    example = example_of(net, purpose, shape)
    sites, costs = trace(net, example, ignore=ignore or ()), cost(net, example)
    name = f"{reference(net) or model} ({type(net).__name__})"
    out.say(f"{name}: {costs.macs:,} MACs, {costs.params:,} parameters")
    for plan in applied(net):
        out.say(plan.summary())
    out.say(_sites_table(sites), _statistics(sites), _frozen(sites), _costs_table(costs))
    if sites.untouched:
        out.say(f"Not reached by this input, left as they are: {_short(list(sites.untouched))}")
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
        "layers": {n: {"macs": c.macs, "params": c.params} for n, c in costs.layers.items()},
    }


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
    table = Table(title="Frozen: what can't be pruned", title_justify="left")
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
