"""A fit is taken back where all that the task measures is worse on samples that no fit has seen."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.errors import ObcError
from obc.tasks import Task
from obc.tasks.recalibration import recalibrate_for

Batch = tuple[Tensor, Tensor]


def networks() -> tuple[nn.Module, nn.Module]:
    """A network, and the same without half of its neurons."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    plan = obc.Plan.from_kept(obc.trace(whole, torch.zeros(1, 6)), {"0": range(8)})
    return whole, obc.apply(copy.deepcopy(whole), plan)


def batches(count: int) -> list[Batch]:
    torch.manual_seed(1)
    return [(torch.randn(16, 6), torch.full((16,), float(i))) for i in range(count)]


class Figures:
    """A judge that says what it was told to, and remembers which batches it saw."""

    def __init__(self, *figures: Sequence[float]) -> None:
        self._figures, self.seen = list(figures), []

    def __call__(self, model: nn.Module, batches: Iterable[Batch]) -> Sequence[float]:
        self.seen.append([float(label) for _, labels in batches for label in labels])
        return self._figures.pop(0)


def same(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))


def test_worse_in_every_figure_is_taken_back() -> None:
    whole, pruned = networks()
    cut = copy.deepcopy(pruned)
    judge = Figures((0.9, 0.6), (0.8, 0.5))
    account = obc.recalibrate(pruned, whole, batches(16), samples=128, judge=judge)
    assert account.after < account.before and not account.kept and same(pruned, cut)
    assert account.judged == ((0.9, 0.6), (0.8, 0.5))
    assert "0.9, 0.6, recalibrated 0.8, 0.5" in account.summary()


@pytest.mark.parametrize(
    "figures",
    [((0.9, 0.6), (0.8, 0.7)), ((0.9, 0.6), (0.9, 0.6)), ((0.5,), (0.9,)), ((), ())],
)
def test_else_the_outputs_decide(figures: tuple[Sequence[float], Sequence[float]]) -> None:
    whole, pruned = networks()
    plain = copy.deepcopy(pruned)
    obc.recalibrate(plain, whole, batches(16), samples=128)
    account = obc.recalibrate(
        pruned, whole, batches(16), samples=128, judge=Figures(*figures, *figures)
    )
    assert account.kept and same(pruned, plain)
    assert "held-out error" in account.summary()


def test_it_is_judged_by_samples_that_no_fit_has_seen() -> None:
    whole, pruned = networks()
    judge = Figures((1.0,), (1.0,))
    obc.recalibrate(pruned, whole, batches(12), samples=128, judge=judge)
    assert judge.seen[0] == judge.seen[1] and set(judge.seen[0]) == {8.0, 9.0, 10.0, 11.0}
    whole, pruned = networks()
    judge = Figures((1.0,), (1.0,))
    obc.recalibrate(pruned, whole, batches(4), samples=128, judge=judge)  # there are no more
    assert judge.seen[0] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0]


def test_a_judge_that_fails_leaves_the_cut() -> None:
    whole, pruned = networks()
    cut = copy.deepcopy(pruned)
    with pytest.raises(IndexError):
        obc.recalibrate(pruned, whole, batches(16), samples=128, judge=Figures((1.0,)))
    assert same(pruned, cut)
    with pytest.raises(ObcError, match="judge"):
        obc.recalibrate(pruned, whole, batches(16), judge=0.5)  # type: ignore[arg-type]


class Doubting(Task):
    """A task whose judge is for the cut, always."""

    def __init__(self) -> None:
        super().__init__(batches(16), batches(1))
        self.asked = 0

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        loss: Tensor = model(batch[0]).square().mean()
        return loss

    def judge(self, model: nn.Module, batches: Iterable[Batch]) -> Sequence[float]:
        self.asked += 1
        return (float(self.asked % 2),)


def test_the_task_brings_its_judge_wherever_it_is_recalibrated_for() -> None:
    task = Doubting()
    whole, pruned = networks()
    cut = copy.deepcopy(pruned)
    assert not recalibrate_for(task, pruned, whole, samples=64).kept
    assert not obc.recalibrate(pruned, whole, task, samples=64).kept
    assert same(pruned, cut)
    details = obc.prune(whole, task=task, target="channels=50%", rows=2, samples=64, details=True)
    assert details.recalibration is not None and not details.recalibration.kept
    assert task.asked == 6
