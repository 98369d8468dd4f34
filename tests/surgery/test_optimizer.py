"""An optimizer carried over a cut goes on as if the channels had never been there."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import obc
from tests.examples import floats
from tests.reference import cut
from tests.untouched import untouched

INPUT = floats(6, 5)
KEPT = {"0": [0, 2, 3, 6], "2": [1, 4, 5]}

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw, for each": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


def mlp() -> nn.Sequential:
    layers = [nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3)]
    return nn.Sequential(*layers).double()


def loss(model: nn.Module) -> Tensor:
    return model(INPUT).square().sum()


def train(model: nn.Module, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


def plan_of(model: nn.Module) -> obc.Plan:
    return obc.Plan.from_kept(obc.trace(model, INPUT), KEPT)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_state_is_cut_like_its_parameter(name: str) -> None:
    model = mlp()
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, 3)
    names = {id(p): n for n, p in model.named_parameters()}
    old = {names[id(p)]: copy.deepcopy(s) for p, s in optimizer.state.items()}
    sites = obc.trace(model, INPUT)
    obc.apply(model, plan_of(model), optimizer=optimizer)

    assert [id(p) for g in optimizer.param_groups for p in g["params"]] == [
        id(p) for p in model.parameters()
    ]
    assert set(optimizer.state) == (set(model.parameters()) if old else set())
    for key, p in model.named_parameters():
        for part, value in old.get(key, {}).items():
            if isinstance(value, Tensor) and value.ndim:
                value = cut(value, key, sites, KEPT)
            assert torch.equal(torch.as_tensor(optimizer.state[p][part]), torch.as_tensor(value))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_goes_on_as_the_masked_original_does(name: str) -> None:
    """Masked from the start, the original's removed channels neither learn nor contribute."""
    model = mlp()
    sites = obc.trace(model, INPUT)
    masks = [torch.zeros(8).double(), torch.zeros(7).double()]
    for mask, kept in zip(masks, KEPT.values(), strict=True):
        mask[kept] = 1
    model[1].register_forward_hook(lambda m, i, out: out * masks[0][: out.shape[1]])
    model[3].register_forward_hook(lambda m, i, out: out * masks[1][: out.shape[1]])
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, 3)

    pruned = mlp()
    pruned.load_state_dict(model.state_dict())
    carried = OPTIMIZERS[name](pruned.parameters())
    carried.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    obc.apply(pruned, plan_of(mlp()), optimizer=carried)

    before = {n: p.detach().clone() for n, p in pruned.named_parameters()}
    train(model, optimizer, 2)
    train(pruned, carried, 2)
    full = dict(model.named_parameters())
    for key, p in pruned.named_parameters():
        assert not torch.equal(p, before[key]), f"{key} does not learn"
        expected = cut(full[key].detach(), key, sites, KEPT)
        assert torch.allclose(p, expected, rtol=0, atol=1e-12), key


def test_groups_keep_their_settings() -> None:
    model = mlp()
    groups = [
        {"params": list(model[0].parameters()), "lr": 0.5},
        {"params": [*model[2].parameters(), *model[4].parameters()], "weight_decay": 0.3},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    train(model, optimizer, 1)
    obc.apply(model, plan_of(model), optimizer=optimizer)
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.5, 0), (0.1, 0.3)]
    assert optimizer.param_groups[0]["params"][0] is model[0].weight
    train(model, optimizer, 1)


def test_an_optimizer_that_has_not_stepped() -> None:
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    obc.apply(model, plan_of(model), optimizer=optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    train(model, optimizer, 1)
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_scheduler_goes_on() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(model, optimizer, 1)
    obc.apply(model, plan_of(model), optimizer=optimizer)
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_a_part_of_the_model_is_enough() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model[4].parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, 1)
    obc.apply(model, plan_of(model), optimizer=optimizer)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == [
        id(p) for p in model[4].parameters()
    ]


def test_an_old_graph_does_not_break_the_next_backward() -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    old = loss(model)
    obc.apply(model, plan_of(model), optimizer=optimizer)
    train(model, optimizer, 1)
    cut_ones = [p for n, p in model.named_parameters() if n != "4.bias"]
    grads = [p.grad.clone() for p in cut_ones]
    old.backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(cut_ones, grads, strict=True))
    train(model, optimizer, 1)


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (
            lambda m: torch.optim.Adafactor(m.parameters()),
            "cannot be sliced; start a new optimizer",
        ),
        (lambda m: torch.optim.LBFGS(m.parameters()), "LBFGS .*start a new optimizer"),
        (lambda m: torch.optim.SGD(mlp().parameters()), "holds no parameter of this model"),
    ],
    ids=["adafactor", "lbfgs", "another model's"],
)
def test_refused_before_anything_is_cut(build: Callable[[nn.Module], Optimizer], text: str) -> None:
    model = mlp()
    optimizer = build(model)

    def closure() -> float:
        optimizer.zero_grad()
        value = loss(model)
        value.backward()
        return float(value)

    optimizer.step(closure)
    plan, state = plan_of(model), copy.deepcopy(optimizer.state_dict())
    with untouched(model), pytest.raises(obc.ObcError, match=text):
        obc.apply(model, plan, optimizer=optimizer)
    assert str(optimizer.state_dict()) == str(state)


def test_lbfgs_is_refused_before_its_first_step_too() -> None:
    """It keeps a list of the parameters for itself."""
    model = mlp()
    optimizer = torch.optim.LBFGS(model.parameters())
    plan = plan_of(model)
    with untouched(model), pytest.raises(obc.ObcError, match="LBFGS"):
        obc.apply(model, plan, optimizer=optimizer)
