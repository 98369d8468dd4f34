"""What is known of the quality along a run: the places evaluated, and the promise that was made."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field

from obc.errors import ObcError

if TYPE_CHECKING:
    from rich.table import Table

    from obc.plans.plan import Plan, PlanCost


class Promise(BaseModel):
    """What a plan promises of the quality: the loss of the metric stays within `limit`.

    `estimate` is the loss measured on `samples` samples that nothing else has used, `bound` its
    upper bound at `confidence`. Losses are in the metric's unit, or in % of what it was (`meaning`
    says which). Places were judged in an order fixed beforehand, up to the first failure, so that
    the confidence is that of the plan, however many places were judged.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    target: str
    meaning: str
    limit: float
    estimate: float
    bound: float
    confidence: float = Field(gt=0, lt=1)
    samples: int = Field(gt=0)
    method: str
    protocol: str

    def __str__(self) -> str:
        level = ">=" in self.target or "<=" in self.target
        if level:
            said = f"better by {-self.estimate:.3g}, by at least {-self.bound:.3g}"
        else:
            said = f"worse by {self.estimate:.3g}, by at most {self.bound:.3g}"
        sure = f"with {self.confidence:.0%} confidence ({self.method}, {self.samples} samples)"
        return f"{self.meaning}: {said} {sure}"


class Place(BaseModel):
    """One place of a run that was cut, recalibrated and evaluated; step 0 is the whole model.

    `value` is the metric on the samples of `split`, `loss` how much worse that is than the whole
    model on the same samples, `bound` the upper bound of the loss at 95% for this place alone.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    step: int = Field(ge=0)
    split: str
    metric: str
    value: float
    loss: float
    bound: float
    samples: int = Field(gt=0)


class Frontier(list[Place]):
    """The quality against the cost, the largest model first; `csv` and a table show it."""

    def __init__(self, plan: Plan) -> None:
        if not plan.places:
            raise ObcError(
                "nothing was evaluated along this plan; obc.plan(…, task=task) with a quality "
                "target does, and `obc frontier`"
            )
        super().__init__(sorted(plan.places, key=lambda place: (place.step, place.split)))
        self._plan = plan

    def cost(self, place: Place) -> PlanCost:
        """What the model costs there."""
        assert self._plan.before is not None
        steps = [*self._plan.history, *self._plan.beyond]
        return steps[place.step - 1].after if place.step else self._plan.before

    def csv(self) -> str:
        """A line for each place, under a line of names."""
        text = io.StringIO()
        lines = csv.writer(text, lineterminator="\n")
        costs = [self.cost(place).model_dump() for place in self]
        units = [u for u in ("macs", "params", "channels", "memory", "seconds") if costs[0].get(u)]
        lines.writerow(["step", *units, *list(Place.model_fields)[1:]])
        for place, cost in zip(self, costs, strict=True):
            fields = place.model_dump()
            lines.writerow([fields.pop("step"), *(cost[u] for u in units), *fields.values()])
        return text.getvalue()

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table(
            "step", "MACs", "parameters", "split", "metric", "value", "worse by", "≤ (95%)"
        )
        for place in self:
            cost, before = self.cost(place), self._plan.before
            assert before is not None
            table.add_row(
                f"{place.step}{' *' if place.step == len(self._plan.history) else ''}",
                f"{before.macs / max(cost.macs, 1):.2f}x less",
                f"{before.params / max(cost.params, 1):.2f}x less",
                place.split,
                place.metric,
                f"{place.value:.4g}",
                f"{place.loss:.3g}",
                f"{place.bound:.3g}",
            )
        table.caption = "* this plan; plan.at(step) takes any other. Bounds: 95%, one place each"
        return table
