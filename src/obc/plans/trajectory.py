"""Any place along a run as a plan of its own: plans of one run are nested, so none is run again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from obc.costs.targets import Target, parse
from obc.errors import ObcError

if TYPE_CHECKING:
    from obc.plans.plan import Plan, PlanCost, PlanStep


def removed_scores(history: Iterable[PlanStep]) -> dict[str, dict[int, float]]:
    """All channels that are gone after these steps, each with its score then, by site."""
    gone: dict[str, dict[int, float]] = {}
    for step in history:
        for name, channels in step.restored.items():
            for channel in channels:
                del gone[name][channel]
        for name, channels in step.removed.items():
            scores = step.scores[name]
            gone.setdefault(name, {}).update(zip(channels, scores, strict=True))
    return gone


def at(plan: Plan, place: int | str | Target) -> Plan:
    """The plan after so many steps of the run, or after the first that meets a cost target."""
    from obc.plans.plan import SitePlan

    steps = [*plan.history, *plan.beyond]
    if plan.before is None:
        raise ObcError("this plan was not made step by step; obc.plan makes one that was")
    number = place if isinstance(place, int) else _meeting(parse(place), plan.before, steps)
    if isinstance(place, bool) or not 0 <= number <= len(steps):
        raise ObcError(f"there is no step {place}; the run has {len(steps)}")
    if number == len(plan.history):
        return plan
    gone = {n: scores for n, scores in removed_scores(steps[:number]).items() if scores}
    sizes = {n: site.size for n, site in plan.sites.items()} | plan.untouched
    floors = {n: site.floor for n, site in plan.sites.items()}
    return plan.model_copy(
        update={
            "sites": {
                name: SitePlan(
                    size=sizes[name],
                    kept=[i for i in range(sizes[name]) if i not in scores],
                    floor=floors.get(name),
                    highest_removed=max(scores.values()),
                )
                for name, scores in gone.items()
            },
            "untouched": {n: size for n, size in sizes.items() if n not in gone},
            "target": f"step {number}" if isinstance(place, int) else str(parse(place)),
            "after": steps[number - 1].after if number else plan.before,
            "history": steps[:number],
            "beyond": steps[number:],
            "promise": None,  # it was made for another place
            "notes": [],
        }
    )


def _meeting(target: Target, before: PlanCost, steps: list[PlanStep]) -> int:
    """The number of the first step at which a cost target is met."""
    unit = target.field
    costs = [getattr(cost, unit) for cost in (before, *(step.after for step in steps))]
    if costs[0] is None:
        raise ObcError(f"{target}: this run has not kept account of {target.unit}")
    limit = target.limit(costs[0])
    number = next((i for i, cost in enumerate(costs) if cost <= limit), None)
    if number is None:
        most = target.like(costs[0], min(costs))
        raise ObcError(f"{target}: the run went only as far as {most}")
    return number
