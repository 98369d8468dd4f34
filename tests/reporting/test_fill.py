"""Parts of a record against slow and plain ways to get the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from obc import ObcError, Plan, plan, trace
from obc.recalibration.account import Fit, Recalibration
from obc.reporting import fill
from obc.tasks import Classification, Evaluation


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 4, 3, padding=1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def loss(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def batches(count: int = 4) -> list[tuple[Tensor, Tensor]]:
    return [(torch.randn(8, 1, 6, 6), torch.randint(0, 3, (8,))) for _ in range(count)]


def test_widths_of_sites_that_a_plan_leaves_out_stay() -> None:
    sites = trace(net(), torch.zeros(1, 1, 6, 6))
    found = fill.widths(sites, {"2x": Plan.from_kept(sites, {"0": [1, 2]})})
    assert found.before == {"0": 6, "3": 4}
    assert found.after == {"2x": {"0": 2, "3": 4}}


def test_steps_begin_with_the_model_as_it_was() -> None:
    model = net()
    found = plan(
        model, torch.zeros(1, 1, 6, 6), batches(), loss, target="channels=60%", step=0.1, rows=2
    )
    steps = fill.steps(found, {0: Evaluation(Classification.metrics, (90.0, 100.0, 0.5))})
    assert found.before is not None and found.after is not None
    assert [s.step for s in steps] == list(range(len(found.history) + 1))
    assert steps[0].macs == found.before.macs and steps[-1].macs == found.after.macs
    assert steps[0].quality == 90.0 and steps[0].loss == 0.5 and steps[1].quality is None


def test_a_plan_made_by_hand_has_no_steps() -> None:
    sites = trace(net(), torch.zeros(1, 1, 6, 6))
    assert fill.steps(Plan.from_kept(sites, {"0": [1, 2]})) == []


@pytest.mark.parametrize("log", [False, True])
def test_scores_are_counted_as_numpy_counts_them(log: bool) -> None:
    values = torch.rand(500, dtype=torch.float64) + 0.5
    values = 10 ** (8 * values) if log else values
    found = fill.scores("x", {"a": values[:200], "b": values[200:]}, share=0.3)
    assert found.log is log and found.zeros == 0
    edges, drawn = (np.log10(found.edges), values.log10()) if log else (found.edges, values)
    expected, _ = np.histogram(drawn.numpy(), bins=np.asarray(edges))
    assert np.abs(expected - found.counts).sum() <= 2  # the last bit of an edge
    assert found.cut is not None and int((values < found.cut).sum()) == 150


def test_scores_without_a_place_on_a_log_axis_are_counted() -> None:
    values = torch.cat([torch.zeros(7), 10 ** torch.linspace(-8, 0, 50)])
    found = fill.scores("x", {"a": values}, share=0.05)
    assert found.log and found.zeros == 7 and sum(found.counts) == 50 and found.cut == 0


def test_scores_that_are_all_the_same_make_one_bar() -> None:
    found = fill.scores("x", {"a": torch.ones(9)})
    assert sum(found.counts) == max(found.counts) == 9 and not found.log and found.cut is None


@pytest.mark.parametrize("values", [torch.tensor([1.0, float("nan")]), torch.zeros(0)])
def test_scores_that_cannot_be_drawn_are_refused(values: Tensor) -> None:
    with pytest.raises(ObcError, match="scores of 'x'"):
        fill.scores("x", {"a": values})


def dense(model: nn.Module, rows: list[Any], weight: Tensor, filters: int, side: int) -> Tensor:
    """abs(JᵀJ) in full, then its blocks averaged one by one."""
    model.eval()
    gradients = []
    for batch in rows:
        model.zero_grad()
        loss(model, batch).backward()
        assert weight.grad is not None
        gradients.append(weight.grad[:filters].reshape(-1).clone())
    jacobian = torch.stack(gradients)
    square = (jacobian.T @ jacobian).abs()
    size = weight[0].numel()
    of = [[i for i in range(size) if i * side // size == s] for s in range(side)]
    places = [[f * size + i for i in group] for f in range(filters) for group in of]
    return torch.stack([torch.stack([square[a][:, b].mean() for b in places]) for a in places])


def test_a_heat_map_is_the_mean_of_the_dense_matrix() -> None:
    model = net().double().train()
    rows = [(x.double(), y) for x, y in batches()]
    modes = [m.training for m in model.modules()]
    found = fill.heat(model, rows, loss, "3", filters=3)
    assert [m.training for m in model.modules()] == modes
    weight = model[3].weight
    assert isinstance(weight, Tensor) and weight.grad is None
    assert found.block == 12 and len(found.values) == 36
    got = torch.tensor(found.values, dtype=torch.float64)
    expected = dense(model, rows, weight, 3, 12)
    assert torch.allclose(got, expected, rtol=1e-3, atol=0)  # four digits are kept
    other = dense(model, rows[:-1], weight, 3, 12)
    assert not torch.allclose(got, other, rtol=1e-3, atol=0)


def test_a_heat_map_of_a_frozen_layer_leaves_it_frozen() -> None:
    model = net().requires_grad_(False)
    found = fill.heat(model, batches(), loss, "0")
    assert found.block == 9 and len(found.values) == 6 * 9
    assert not any(p.requires_grad for p in model.parameters())


def test_a_heat_map_of_no_layer_is_refused() -> None:
    with pytest.raises(ObcError, match="no layer with weights is named '2'"):
        fill.heat(net(), batches(), loss, "2")
    with pytest.raises(ObcError, match="no batches"):
        fill.heat(net(), [], loss, "0")


def test_an_error_of_nothing_is_not_below_zero() -> None:
    fits = (Fit("a", before=0.5, after=-1e-12), Fit("b", before=None, after=float("nan")))
    account = Recalibration(fits, 0.5, -1e-9, residual=False, kept=True, samples=4)
    drawn = fill.recalibration(account)
    assert (drawn.before, drawn.after) == (0.5, 0.0)
    assert [(fit.before, fit.after) for fit in drawn.fits] == [(0.5, 0.0), (None, None)]
