"""The cheapest place of a run that keeps a promise about the quality.

    go on until it is broken          Search.outwards   cut, recalibrate, evaluate: search split
    find where                        Search.bisected   between two places, search split
    fix the places to be judged       Search.sequence   from large models to small ones
    judge them in this order          Search.judged     promise split, up to the first failure

The search split chooses, so what it says of its choice is too good. The promise split is looked at
only by models that were fixed before, in an order that was fixed before, each at 95%; the answer is
the last one before the first failure. Such fixed-sequence testing (W. Maurer, L. Hothorn and
W. Lehmacher, 1995) needs no correction: to return a model that breaks the promise, the first in the
order that does must have passed, and that one passes with a probability of at most 5%.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

from obc.errors import ObcError
from obc.planning.judgement import ERROR, Judgement, fewest, is_accuracy, judge, needed
from obc.planning.places import Places
from obc.planning.quality import Terms
from obc.plans.frontier import Place, Promise
from obc.plans.plan import Plan
from obc.tasks.task import Split

_STRIDE = 0.85  # on the way out, cost from one place to the next
_SPACING = 0.96  # the same between places to be judged
_CLOSE = 0.98  # places whose costs differ less are not told apart


def most_places(share: float, steps: int) -> int:
    """How many places a search evaluates at most that goes on for so many steps to this share.

    >>> most_places(share=0.5, steps=1000), most_places(share=0.5, steps=4)
    (28, 8)
    """
    strides, spaced = (math.ceil(math.log(share, part)) for part in (_STRIDE, _SPACING))
    halvings = math.ceil(math.log2((1 - _STRIDE) / (1 - _CLOSE)))
    return min(strides + 2 * halvings, steps) + min(spaced, steps)


class Search:
    """A promise, and the places of a run that may keep it."""

    def __init__(self, places: Places, terms: Terms) -> None:
        self.places, self.terms = places, terms
        self._judgements: dict[tuple[int, Split], Judgement] = {}

    def plan(self) -> Plan:
        """The cheapest plan that keeps the promise, with all that was evaluated."""
        self._check_data()
        if not self.places.run.open:
            raise ObcError("nothing can be removed: all sites are at their floors")
        passed, failed = self.outwards()
        largest = self.bisected(lambda step: self._estimated(step), passed, failed)
        safest = self.bisected(lambda step: self._bounded(step), 0, largest + 1)
        best: int | None = None
        sequence = self.sequence(safest, failed)
        for step in sequence:
            if self.judged(step, "promise").bound > self.terms.limit:
                break
            if best is None or self.places.cost(step) <= self.places.cost(best):
                best = step
        if best is None:
            self._refuse(sequence[0])
        return self._promised(best)

    def judged(self, step: int, split: Split) -> Judgement:
        """How much worse the model is after so many steps, on one split."""
        key = (step, split)
        if key not in self._judgements:
            before, after = (self.places.evaluation(n, split) for n in (0, step))
            self._judgements[key] = judge(self.terms, self.places.task, before, after)
        return self._judgements[key]

    def outwards(self) -> tuple[int, int]:
        """The last place where the promise seems kept, and the first where it does not."""
        passed, over = 0, False
        while not over:
            limit = self.places.cost(passed) * _STRIDE
            step = passed
            while not over and self.places.cost(step) > limit:
                step += 1
                over = step > self.places.last and not self.places.run.advance()
            step = min(step, self.places.last)
            if step and not self._estimated(step):
                return passed, step
            passed = step
        return passed, passed + 1

    def bisected(self, holds: Callable[[int], bool], low: int, high: int) -> int:
        """The last step that holds, from one that does up to one that does not."""
        seen = sorted(step for step, split in self._judgements if split == "search")
        for step in seen:
            if low < step < high:
                low, high = (step, high) if holds(step) else (low, min(high, step))
        while high - low > 1 and self.places.cost(high - 1) < _CLOSE * self.places.cost(low):
            middle = (low + high) // 2
            low, high = (middle, high) if holds(middle) else (low, middle)
        return low

    def sequence(self, safest: int, last: int) -> list[int]:
        """The places to be judged: from a third of the way to the safest up to the last.

        The quality does not fall evenly, and what is safe on one split may fail on the other. The
        places in between are what is left then, so that they are judged first, close together.
        """
        steps = [max(1, safest // 3)]
        for step in range(steps[0] + 1, min(last, self.places.last) + 1):
            if self.places.cost(step) <= _SPACING * self.places.cost(steps[-1]):
                steps.append(step)
        return steps

    def _estimated(self, step: int) -> bool:
        return self.judged(step, "search").estimate <= self.terms.limit

    def _bounded(self, step: int) -> bool:
        return self.judged(step, "search").bound <= self.terms.limit

    def _check_data(self) -> None:
        """Refuse before the work what could not be promised even of the whole model."""
        whole = self.places.evaluation(0, "search")
        count = self.places.evaluation(0, "promise").samples
        if self.terms.level is not None:
            if not self._estimated(0):
                name = self.terms.metric
                raise ObcError(
                    f"{self.terms}; the whole model has {name.text(whole.values[self.terms.index])}"
                    f": {self.terms.kept_by(self.judged(0, 'search').bound)} could be promised"
                )
        elif is_accuracy(self.terms, whole) and count is not None:
            least = fewest(self.terms)
            if len(count) < least:
                raise ObcError(
                    f"{self.terms}: the {len(count)} samples to promise it by are too few even for "
                    f"the whole model; {least} would do, which is {2 * least} test samples, half "
                    "of them to search by"
                )

    def _refuse(self, step: int) -> NoReturn:
        judgement = self.judged(step, "promise")
        evaluations = [self.places.evaluation(n, "promise") for n in (0, step)]
        enough = needed(self.terms, judgement, *evaluations)
        advice = f"{self.terms.kept_by(judgement.bound)} could be promised there"
        if enough is not None:
            advice += f", or this with {enough} samples that turn out alike"
        raise ObcError(
            f"{self.terms}: not to be promised; at {self.places.saving(step)} it is worse by "
            f"{self.terms.text(judgement.estimate)}, at most {self.terms.text(judgement.bound)} "
            f"with {1 - ERROR:.0%} confidence from {judgement.samples} samples; {advice}"
        )

    def _promised(self, step: int) -> Plan:
        judgement = self.judged(step, "promise")
        promise = Promise(
            target=str(self.terms.target),
            meaning=str(self.terms).partition(": ")[2],
            limit=self.terms.limit,
            estimate=judgement.estimate,
            bound=judgement.bound,
            confidence=1 - ERROR,
            samples=judgement.samples,
            method=judgement.method,
            protocol=f"the promise half of {self.places.task.protocol}",
        )
        update = {"target": promise.target, "promise": promise, "places": self.frontier()}
        return self.places.plan(step).model_copy(update=update)

    def frontier(self) -> list[Place]:
        """All that was evaluated, with bounds for each place alone."""
        index, metric = self.terms.index, self.terms.metric
        places = []
        for (step, split), evaluation in sorted(self.places.evaluations.items()):
            judgement = self.judged(step, split)
            places.append(
                Place(
                    step=step,
                    split=split,
                    metric=metric.name,
                    value=evaluation.values[index],
                    loss=judgement.estimate,
                    bound=judgement.bound,
                    samples=judgement.samples,
                )
            )
        return places
