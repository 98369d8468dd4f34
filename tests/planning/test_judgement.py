"""Exact where a metric is a share of samples, bootstrapped elsewhere; and how many would do."""

from __future__ import annotations

import pytest
import torch

from obc import ObcError
from obc.planning.judgement import fewest, judge, needed
from obc.planning.paired import drop_at_most
from obc.planning.quality import Quality
from obc.tasks import Classification, Evaluation

TASK = Classification()


def evaluation(right: torch.Tensor, loss: float = 0.5) -> Evaluation:
    rows = torch.stack([right.double(), torch.ones(len(right)), loss + right.double()], 1)
    values = TASK.summary(TASK.total(rows.double()), len(rows))
    return Evaluation(tuple(TASK.metrics), tuple(values), samples=rows.double())


def pair(lost: int, gained: int, count: int) -> tuple[Evaluation, Evaluation]:
    was, now = torch.ones(count, dtype=torch.bool), torch.ones(count, dtype=torch.bool)
    now[:lost] = False
    was[lost : lost + gained] = False
    return evaluation(was), evaluation(now, 0.6)


def test_an_accuracy_is_judged_by_pairs() -> None:
    terms = Quality.parse("accuracy-1%").of(TASK.metrics)
    judged = judge(terms, TASK, *pair(30, 20, 1000))
    assert judged.method == "exact" and judged.samples == 1000
    assert judged.estimate == pytest.approx(1.0)
    assert judged.bound == 100 * drop_at_most(30, 20, 1000)


def test_a_loss_is_bootstrapped() -> None:
    terms = Quality.parse("loss+0.5").of(TASK.metrics)
    judged = judge(terms, TASK, *pair(30, 20, 1000))
    assert judged.method == "bootstrap"
    assert judged.estimate == pytest.approx(0.1 - 0.01)
    assert judged.estimate < judged.bound < judged.estimate + 0.02


def test_a_level_is_judged_by_the_pruned_model_alone() -> None:
    terms = Quality.parse("accuracy>=95").of(TASK.metrics)
    judged = judge(terms, TASK, *pair(30, 500, 1000))
    assert judged.estimate == pytest.approx(95 - 97)
    assert judged.bound == judge(terms, TASK, *pair(30, 0, 1000)).bound
    assert -2 < judged.bound < -0.5


def test_how_many_samples_would_do() -> None:
    terms = Quality.parse("accuracy-1%").of(TASK.metrics)
    least = fewest(terms)
    assert 100 * drop_at_most(0, 0, least) <= 1 < 100 * drop_at_most(0, 0, least - 1)
    few = pair(6, 4, 1000)
    judged = judge(terms, TASK, *few)
    assert judged.estimate < 1
    enough = needed(Quality.parse("accuracy-0.5%").of(TASK.metrics), judged, *few)
    assert enough is not None and enough > 1000
    scale = enough / 1000
    assert 100 * drop_at_most(round(6 * scale), round(4 * scale), enough) <= 0.5
    worse = pair(30, 4, 1000)
    assert needed(terms, judge(terms, TASK, *worse), *worse) is None


def test_too_few_or_unpaired_samples_are_refused() -> None:
    terms = Quality.parse("loss+0.5").of(TASK.metrics)
    with pytest.raises(ObcError, match="too few for a bound; 20"):
        judge(terms, TASK, *pair(1, 1, 10))
    with pytest.raises(ObcError, match="cannot be paired"):
        judge(terms, TASK, pair(1, 1, 100)[0], pair(1, 1, 90)[1])
    with pytest.raises(ObcError, match="no outcomes of single samples"):
        judge(terms, TASK, Evaluation(tuple(TASK.metrics), (1.0, 1.0, 1.0)), pair(1, 1, 90)[1])
