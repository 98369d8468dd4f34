"""A plan for people: a table of its sites, and what the model costs before and after."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from obc.plans.plan import Plan, PlanCost

_WIDTH = 110


def table(plan: Plan) -> Table:
    """Each pruned site before and after, its scores, and whether it is at its floor."""
    from rich.table import Table  # drawn only where somebody looks

    lines = Table(title=_title(plan), title_justify="left", caption=_costs(plan) or None)
    lines.caption_justify = "left"
    lines.add_column("site", overflow="fold")
    for name in ("before", "after", "kept", "highest removed", "lowest kept", ""):
        lines.add_column(name, justify="right")
    for name, site in plan.sites.items():
        after = len(site.kept)
        lines.add_row(
            name,
            str(site.size),
            str(after),
            f"{after / site.size:.0%}",
            _score(site.highest_removed),
            _score(site.lowest_kept),
            "at its floor" if site.floor is not None and after <= site.floor else "",
        )
    return lines


def summary(plan: Plan) -> str:
    """The table as plain text."""
    from rich.console import Console

    page = Console(file=io.StringIO(), width=_WIDTH, color_system=None)
    page.print(table(plan))
    assert isinstance(page.file, io.StringIO)
    return "\n".join(line.rstrip() for line in page.file.getvalue().splitlines())


def _title(plan: Plan) -> str:
    target = f"Plan for {plan.target}" if plan.target else "Plan"
    steps = f", {len(plan.history)} steps" if plan.history else ""
    return f"{target}: {len(plan.sites)} sites pruned{steps}"


def _score(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _costs(plan: Plan) -> str:
    lines = []
    if plan.before and plan.after:
        lines += _changes(plan.before, plan.after)
    if plan.untouched:
        count = len(plan.untouched)
        lines.append(f"{count} more {'site keeps' if count == 1 else 'sites keep'} everything")
    if plan.promise is not None:
        lines.append(f"promised: {plan.promise}")
    return "\n".join([*lines, *plan.notes])


def _changes(before: PlanCost, after: PlanCost) -> list[str]:
    rows = [
        ("MACs", before.macs, after.macs),
        ("parameters", before.params, after.params),
        ("channels", before.channels, after.channels),
    ]
    if before.memory is not None and after.memory is not None:
        rows.append(("bytes of memory", before.memory, after.memory))
    lines = [
        f"{name} {a:,} → {b:,} ({a / max(b, 1):.3g}x less, {b / max(a, 1):.1%} kept)"
        for name, a, b in rows
    ]
    if before.seconds is not None and after.seconds is not None:
        gain = before.seconds / after.seconds
        lines.append(
            f"time {before.seconds * 1e3:.3g} ms → {after.seconds * 1e3:.3g} ms ({gain:.3g}x less)"
        )
    return lines
