"""How much worse a model has become, sample by sample: an estimate, and a bound on it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from obc.errors import ObcError
from obc.planning import binomial, bootstrap, paired
from obc.planning.quality import Terms
from obc.tasks.evaluation import Evaluation
from obc.tasks.task import Task

ERROR = 0.05  # a bound is exceeded with at most this probability
_MOST = 10**9  # samples; nobody has more


@dataclass(frozen=True)
class Judgement:
    """The loss of a model against another on the same samples, and its upper bound at 95%.

    `method` is "exact" for accuracies and "bootstrap" for all others.
    """

    estimate: float
    bound: float
    samples: int
    method: str


def judge(terms: Terms, task: Task, before: Evaluation, after: Evaluation) -> Judgement:
    """Judge two evaluations of the same samples.

    An accuracy, which is the share of samples whose outcome is 1, has an exact bound: that of
    `paired` for a fall, Clopper and Pearson's for a level. Everything else is bootstrapped.
    """
    rows = [_outcomes(before), _outcomes(after)]
    if len(rows[0]) != len(rows[1]):
        raise ObcError(f"{len(rows[0])} samples before and {len(rows[1])} after cannot be paired")
    count = len(rows[0])
    estimate = terms.loss(before.values[terms.index], after.values[terms.index])
    if is_accuracy(terms, before) and is_accuracy(terms, after):
        was, now = (of_model[:, terms.index] == 1 for of_model in rows)
        return Judgement(estimate, _exact(terms, was, now), count, "exact")
    if count < bootstrap.FEWEST:
        raise ObcError(
            f"{terms}: {count} samples are too few for a bound; {bootstrap.FEWEST} are the least"
        )

    def loss(totals: Sequence[Tensor]) -> float:
        return terms.loss(*(task.summary(total, count)[terms.index] for total in totals))

    return Judgement(estimate, bootstrap.upper(loss, rows, ERROR), count, "bootstrap")


def is_accuracy(terms: Terms, evaluation: Evaluation) -> bool:
    """Whether the metric is 100 times the share of samples whose outcome of this index is 1."""
    outcomes = _outcomes(evaluation)
    if terms.metric.unit != "%" or terms.index >= outcomes.shape[1]:
        return False
    outcome = outcomes[:, terms.index]
    binary = bool(((outcome == 0) | (outcome == 1)).all())
    value = 100 * float(outcome.mean())
    return binary and math.isclose(value, evaluation.values[terms.index], abs_tol=1e-6)


def fewest(terms: Terms) -> int:
    """How many samples an exact bound needs at least: those that a model without a flaw would.

    >>> from obc.planning.quality import Quality
    >>> from obc.tasks.evaluation import Metric
    >>> fewest(Quality.parse("accuracy-1%").of([Metric("top1", unit="%")]))
    409
    """
    return _first(lambda n: 100 * paired.drop_at_most(0, 0, n, ERROR) <= terms.limit)


def needed(terms: Terms, judgement: Judgement, before: Evaluation, after: Evaluation) -> int | None:
    """How many samples that turn out like these would promise it; None if none would."""
    if judgement.estimate >= terms.limit:
        return None
    if judgement.method == "bootstrap":
        width = judgement.bound - judgement.estimate
        return math.ceil(judgement.samples * (width / (terms.limit - judgement.estimate)) ** 2)
    was, now = (_outcomes(of)[:, terms.index] == 1 for of in (before, after))

    def enough(count: int) -> bool:
        scale = count / judgement.samples
        shares = [int(x.sum()) * scale for x in (was & ~now, ~was & now, now)]
        lost, gained, right = map(round, shares)
        return _bound(terms, lost, gained, right, count) <= terms.limit

    return _first(enough, judgement.samples)


def _exact(terms: Terms, was: Tensor, now: Tensor) -> float:
    lost, gained = int((was & ~now).sum()), int((~was & now).sum())
    return _bound(terms, lost, gained, int(now.sum()), len(now))


def _bound(terms: Terms, lost: int, gained: int, right: int, count: int) -> float:
    if terms.level is not None:
        return terms.loss(math.nan, 100 * binomial.lower(right, count, ERROR))
    return 100 * paired.drop_at_most(lost, gained, count, ERROR)


def _first(enough: Callable[[int], bool], low: int = 1) -> int:
    """The first number that is enough, where all that follow are; by doubling and halving."""
    high = low
    while not enough(high) and high < _MOST:
        low, high = high, 2 * high
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return high


def _outcomes(evaluation: Evaluation) -> Tensor:
    if evaluation.samples is None:
        raise ObcError(
            "this task keeps no outcomes of single samples, and without them there is no bound"
        )
    return torch.as_tensor(evaluation.samples)
