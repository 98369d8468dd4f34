"""Weights whose outputs only a sigmoid reads are fitted to probabilities."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import obc
from obc.recalibration.logistic import Logistic
from obc.recalibration.logits import Following, candidates
from obc.recalibration.operators import Parameters
from obc.recalibration.recording import Recording
from obc.running.processes import Group
from tests.recalibration.dense import best
from tests.reference import relative_error


class Detector(nn.Module):
    """Boxes and scores of a grid, joined, laid out in a row and taken apart, as a YOLO's are."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 12, 3, padding=1)
        self.boxes, self.scores = nn.Conv2d(12, 4, 1), nn.Conv2d(12, 3, 1)

    def reads(self, x: Tensor) -> Tensor:
        return torch.tanh(self.stem(x))

    def forward(self, x: Tensor) -> Tensor:
        h = self.reads(x)
        rows = torch.cat([self.boxes(h), self.scores(h)], 1).flatten(2)
        boxes, scores = rows.split([4, 3], 1)
        return torch.cat([boxes.exp(), scores.sigmoid()], 1)


def cut() -> tuple[Detector, nn.Module, Tensor]:
    """Nearly all positions are background, with logits far below zero."""
    torch.manual_seed(0)
    net = Detector().double().eval()
    with torch.no_grad():
        net.scores.weight.mul_(12)
        net.scores.bias.sub_(9)
    x = torch.randn(64, 2, 5, 5, dtype=torch.float64)
    plan = obc.Plan.from_kept(obc.trace(net, x[:2]), {"stem": [0, 1, 2, 4, 5, 8, 9, 11]})
    return net, obc.apply(copy.deepcopy(net), plan), x


def divergence(p: Tensor, z: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(z, p, reduction="sum")


def logistic(layer: nn.Conv2d, u: Tensor, t: Tensor, ridge: float) -> tuple[Tensor, Tensor]:
    """Weight and bias of least divergence and ridge, by LBFGS on the sum itself."""
    weight, bias = layer.weight.detach().flatten(1), layer.bias.detach()
    p = t.sigmoid()
    strength = ridge * ((p * (1 - p)).T @ u.square()).mean(1, keepdim=True)
    delta = torch.zeros_like(weight).requires_grad_()
    shift = torch.zeros_like(bias).requires_grad_()
    steps = torch.optim.LBFGS(
        [delta, shift], max_iter=2000, tolerance_grad=1e-11, tolerance_change=0,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def value() -> Tensor:
        steps.zero_grad()
        z = u @ (weight + delta).T + bias + shift
        total = divergence(p, z) + (strength * delta.square()).sum() / 2
        total.backward()
        return total

    steps.step(value)
    return (weight + delta).detach(), (bias + shift).detach()


def test_scores_have_least_divergence_from_the_originals() -> None:
    net, small, x = cut()
    naive = copy.deepcopy(small)
    account = obc.recalibrate(small, net, x.split(16))
    fits = {f.name: f for f in account.fits}
    scores, boxes = fits["scores.weight"], fits["boxes.weight"]
    assert scores.kept and "logits" in scores.note and "logits" not in boxes.note
    seen = x[torch.arange(64) % 8 != 7]
    u = small.reads(seen).detach().movedim(1, -1).flatten(0, -2)
    t = net.scores(net.reads(seen)).detach().movedim(1, -1).flatten(0, -2)
    weight, bias = logistic(naive.scores, u, t, scores.ridge)
    fitted = small.scores.weight.detach().flatten(1)
    assert relative_error([weight, bias], [fitted, small.scores.bias.detach()]) < 1e-5
    target = net.scores(net.reads(seen)).detach()
    squares = best(naive.scores, small.reads(seen).detach(), target, 1, scores.ridge, True)
    assert relative_error([squares.flatten(1)], [fitted]) > 1e-2, "sees no other regression"
    # What it is for: probabilities on inputs that no fit has seen.
    other = torch.randn(64, 2, 5, 5, dtype=torch.float64)
    linear = copy.deepcopy(small)
    with torch.no_grad():
        linear.scores.weight.copy_(squares)
        linear.scores.bias.copy_(t.mean(0) - squares.flatten(1) @ u.mean(0))
    p = net(other)[:, 4:].detach()
    left = [
        (divergence(p, m.scores(m.reads(other)).flatten(2)) - divergence(p, p.logit())).item()
        for m in (small, linear, naive)
    ]
    assert left[0] < 0.9 * left[1] and left[0] < 0.9 * left[2]


class Head(nn.Module):
    """A layer with weights of six channels, and what is done with its output."""

    def __init__(self, then: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.then = nn.Linear(4, 6), nn.Linear(6, 6), then

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).tanh()
        return self.then(self.last(h), h)


READ_BY_SIGMOIDS = {
    "at once": lambda z, h: z.sigmoid(),
    "part by part": lambda z, h: torch.cat([z[:, 3:].sigmoid(), z[:, :3].sigmoid() * 2 - 0.5]),
    "beside others": lambda z, h: torch.stack([z, h], 1).transpose(0, 1)[0].sigmoid(),
    "of a new shape": lambda z, h: z.view(-1, 2, 3).permute(0, 2, 1).sigmoid().exp(),
    "times a number": lambda z, h: 2 * z.sigmoid(),
}
NO_LOGITS = {
    "nothing reads it": lambda z, h: z,
    "a gate": lambda z, h: z.sigmoid() * h,
    "a gate, moved": lambda z, h: z.sigmoid().view(-1, 2, 3) * h.view(-1, 2, 3),
    "SiLU, written out": lambda z, h: z * z.sigmoid(),
    "read twice": lambda z, h: z.sigmoid() + torch.cat([z, h], 1)[:, :6].exp(),
    "half of it": lambda z, h: torch.cat([z[:, :3].sigmoid(), z[:, 3:].exp()], 1),
    "something between": lambda z, h: (z + 1).sigmoid(),
    "another layer's": lambda z, h: torch.cat([z.exp(), h.sigmoid()], 1),
}


def found_in(model: nn.Module) -> set[str]:
    x = torch.randn(3, 4)
    with torch.no_grad(), (recording := Recording(model)):
        model(x)
    keys = candidates(recording.nodes)
    with torch.no_grad(), (following := Following(Parameters(model), keys)):
        model(x)
    return {key[0] for key in following.logits}


@pytest.mark.parametrize("name", READ_BY_SIGMOIDS)
def test_logits_are_told_by_what_reads_them(name: str) -> None:
    assert found_in(Head(READ_BY_SIGMOIDS[name])) == {"last.weight"}


@pytest.mark.parametrize("name", NO_LOGITS)
def test_what_else_is_read_is_no_logit(name: str) -> None:
    assert not found_in(Head(NO_LOGITS[name]))


def test_a_norm_in_front_of_a_sigmoid_is_fitted_as_any_other() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3), nn.BatchNorm1d(3), nn.Sigmoid()
    )
    x = torch.randn(128, 4)
    net(x)
    net.eval()
    plan = obc.Plan.from_kept(obc.trace(net, x[:2]), {"0": range(6)})
    account = obc.recalibrate(obc.apply(copy.deepcopy(net), plan), net, x.split(32))
    assert account.after < account.before
    assert not any(fit.note == "logits" for fit in account.fits)


def test_an_input_of_zeros_and_an_output_that_never_speaks_do_no_harm() -> None:
    """Curvatures of zero, and of 1e-17."""
    u = torch.randn(1, 200, 3, dtype=torch.float64)
    u[..., 1] = 0
    t = torch.stack([u[0] @ torch.ones(3).double(), torch.full((200,), -40.0).double()], 1)[None]
    weight, bias = torch.zeros(1, 2, 3).double(), torch.zeros(1, 2).double()
    problem = Logistic(u, t, weight, bias, True, Group())
    change = problem.solve(1e-5)
    assert change.weight.isfinite().all() and not change.weight[0, :, 1].any()
    left = problem.divergence(change)[0]
    assert left[0] < 1e-3 and left[1] < 1e-3
    assert problem.divergence()[0, 1] > 100
