"""What is within reach: costs by the counts that sites keep, and whether these meet a target."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from obc.costs.cost_model import Costs
from obc.costs.counting import cost
from obc.costs.fitted import Fitted
from obc.costs.targets import TOLERANCE, Price, Target
from obc.errors import ObcError
from obc.plans.plan import PlanCost
from obc.search.landing import evenly, land
from obc.search.working import Working
from obc.tracing.sites import Sites


class Reach:
    """The costs of a model in a target's unit, from all channels down to the floors.

    `levels` are the counts that each site may have; `price` the target's; `seconds` the time of
    the model as it is, where that is measured.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        sites: Sites,
        levels: Sequence[Sequence[int]],
        costs: Costs,
        target: Target,
        price: Price,
        seconds: float | None,
    ) -> None:
        self._model, self._example, self._sites = model, example, sites
        self.levels, self._costs, self._target = levels, costs, target
        self.price = price
        self._relaxed: dict[str, float] = {}
        sizes = [s.size for s in sites]
        self.before = self.cost(sizes, seconds)
        self.whole = self.value(sizes) if seconds is None else seconds

    def limit(self, target: Target) -> float:
        """The most that may be left; where channels are too coarse, up to 0.5% more."""
        return self._relaxed.get(str(target), target.limit(self.whole))

    def cost(self, counts: Sequence[int], seconds: float | None = None) -> PlanCost:
        """The cost at these counts, in the target's unit too if it is predicted."""
        row, costs = torch.tensor([list(counts)]), self._costs
        values = {"macs": costs.macs(row), "params": costs.params(row)}
        values["channels"] = costs.channels(row)
        if isinstance(self.price, Fitted):
            seconds = float(self.price(row)) if seconds is None else seconds
        elif not self._target.measured:
            values.setdefault(self._target.unit, self.price(row))
        return PlanCost(seconds=seconds, **{unit: int(value) for unit, value in values.items()})

    def value(self, counts: Sequence[int]) -> float:
        return float(self.price(torch.tensor([list(counts)])))

    def savings(self, counts: Sequence[int], portions: Sequence[int]) -> Tensor:
        """What one channel of each site saves now, if it goes in portions of so many."""
        now, portion = torch.tensor(list(counts)), torch.tensor(list(portions))
        less = now - torch.diag(portion)
        return (self.price(now[None]) - self.price(less)).double() / portion.clamp_min(1)

    def check(self, model: nn.Module, counts: Sequence[int]) -> None:
        """What these counts are said to cost must be what the cut model costs."""
        counted, predicted = cost(model, self._example), self.cost(counts)
        if (counted.macs, counted.params) != (predicted.macs, predicted.params):
            raise ObcError(
                f"the cut model costs {counted.macs} MACs and {counted.params} parameters, "
                f"not {predicted.macs} and {predicted.params} as expected; please report this model"
            )

    def feasible(self, targets: Sequence[Target], exact: bool = True) -> list[list[int]]:
        """For each target, loosest first, counts that meet it, found before any work; or an error.

        Where the landing need not be `exact`, a floor below the target is enough.
        Each target is tried by itself and, so that plans are nested, below the counts of the one
        before. Only the former is a reason to refuse: the run may come to other counts. Time is
        measured once, with every site at its floor.
        """
        floor = [counts[-1] for counts in self.levels]
        if self._target.measured:
            self._check_time(targets, floor)
            return [floor for _ in targets]
        reachable, below = [], self.levels
        for target in targets:
            if self.value(floor) > self.limit(target):
                self._relax(target, self.value(floor))
            if not exact:
                reachable.append(floor)
                continue
            levels = below
            landing = land(self.price, levels, [], evenly(levels), self.limit(target))
            if not landing.met:
                levels = self.levels
                landing = land(self.price, levels, [], evenly(levels), self.limit(target))
            if not landing.met:
                self._relax(target, landing.value)
            reachable.append([counts[p] for counts, p in zip(levels, landing.places, strict=True)])
            below = [counts[p:] for counts, p in zip(levels, landing.places, strict=True)]
        return reachable

    def _relax(self, target: Target, value: float) -> None:
        """Take what is short of a target by no more than a plan may be better; refuse the rest."""
        limit = self.limit(target)
        if not limit < value <= limit * TOLERANCE:
            self.refuse(target, value)
        self._relaxed[str(target)] = value
        nearest = target.like(self.whole, value)
        warnings.warn(f"{target} is met by {nearest}: channels are too coarse", stacklevel=2)

    def refuse(self, target: Target, value: float) -> NoReturn:
        if value > self.limit(target) and value == self.value(
            [counts[-1] for counts in self.levels]
        ):
            why = "with every site at its floor there is still more left"
        else:
            why = "its channels are too coarse to land within 0.5% of it"
        nearest = target.like(self.whole, value)
        raise ObcError(f"{target} cannot be met: {why}; the nearest that can is {nearest}")

    def _check_time(self, targets: Sequence[Target], floor: Sequence[int]) -> None:
        smallest = Working(self._model, self._sites, as_it_is=True)
        smallest.remove({s.name: range(n, s.size) for s, n in zip(self._sites, floor, strict=True)})
        least = self._target.measure(smallest.model, self._example)
        for target in targets:
            if least > self.limit(target):
                gain = self.before.macs / max(1, self.cost(floor).macs)
                raise ObcError(
                    f"{target} cannot be met: with every site at its floor there are {gain:.3g}x "
                    f"fewer MACs, but the model runs only {self.whole / least:.3g}x as fast"
                )
