"""Calls with the wrong arguments are refused in one sentence, and nothing is touched."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.untouched import untouched

X = torch.rand(2, 4)


def mlp(width: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2))


def loss(model: Any, x: Tensor) -> Tensor:
    out: Tensor = model(x).square().mean()
    return out


def planned(model: nn.Module, **settings: Any) -> Any:
    chosen = {"target": "macs=2x", "step": 0.2, **settings}
    batches = chosen.pop("batches", [X, X])
    return obc.plan(model, chosen.pop("example", X), batches, chosen.pop("loss", loss), **chosen)


def scored(model: nn.Module, *args: Any, **more: Any) -> Any:
    return obc.score(model, obc.trace(model, X), *(args or ([X], loss)), **more)


NARROW = obc.trace(mlp(6), X)
SHIFTED = obc.trace(nn.Sequential(nn.Identity(), *mlp()), X)
NARROW = obc.trace(mlp(6), X)
SHIFTED = obc.trace(nn.Sequential(nn.Identity(), *mlp()), X)
Call = Callable[[Any, Path], Any]
CALLS: dict[str, tuple[Call, str]] = {
    "trace without a model": (lambda m, p: obc.trace(None, X), "a model is a torch.nn.Module"),
    "plan without a model": (lambda m, p: planned(None), "a model is a torch.nn.Module"),
    "score a state dict": (
        lambda m, p: obc.score(m.state_dict(), obc.trace(m, X), [X], loss),
        "build the model, and load_state_dict",
    ),
    "cost without a model": (lambda m, p: obc.cost(None, X), "a model is a torch.nn.Module"),
    "save without a model": (lambda m, p: obc.save(None, p), "a model is a torch.nn.Module"),
    "load without a model": (lambda m, p: obc.load(None, p), "a model is a torch.nn.Module"),
    "export a path": (lambda m, p: obc.export(p, m, X), "a model is a torch.nn.Module"),
    "apply nothing": (lambda m, p: obc.apply(m, None), "a plan is an obc.Plan, not a NoneType"),
    "apply sites": (lambda m, p: obc.apply(m, obc.trace(m, X)), "a plan is an obc.Plan"),
    "verify nothing": (lambda m, p: obc.verify(m, m, None, X), "a plan is an obc.Plan"),
    "no batches": (lambda m, p: planned(m, batches=None), "batches"),
    "one number for batches": (lambda m, p: planned(m, batches=3), "batches"),
    "score without batches": (lambda m, p: scored(m, None, loss), "batches"),
    "a target that is a number": (lambda m, p: planned(m, target=3), "target"),
    "no target": (lambda m, p: planned(m, target=None), "target"),
    "targets that are numbers": (lambda m, p: planned(m, target=[2, 3]), "target"),
    "a step in words": (lambda m, p: planned(m, step="a"), "step is a share"),
    "rows in words": (lambda m, p: planned(m, rows="all"), "rows is a whole number"),
    "carry in words": (lambda m, p: planned(m, carry="a"), "carry is"),
    "a criterion that is a number": (lambda m, p: planned(m, criterion=3), "criterion"),
    "score by a number": (lambda m, p: scored(m, [X], loss, 3), "criterion"),
    "a seed in words": (lambda m, p: planned(m, seed="x"), "seed is a whole number"),
    "a ratio in words": (lambda m, p: planned(m, max_ratio="a"), "max_ratio is a share"),
    "a loss that is no function": (lambda m, p: planned(m, loss=3), "loss"),
    "another model's sites": (
        lambda m, p: obc.score(m, NARROW, [X], loss),
        "sites are of another model",
    ),
    "sites of layers that are not there": (
        lambda m, p: obc.score(m, SHIFTED, [X], loss),
        "sites are of another model",
    ),
    "plan.from_kept of a model": (lambda m, p: obc.Plan.from_kept(m, {"0": [1]}), "sites"),
    "an empty example": (lambda m, p: obc.trace(m, ()), "the model rejects the example"),
    "no example": (lambda m, p: obc.trace(m, None), "the model rejects the example"),
    "a wrong example": (lambda m, p: obc.trace(m, torch.zeros(2, 5)), "the model rejects the exam"),
    "cost of a wrong example": (lambda m, p: obc.cost(m, torch.zeros(2, 5)), "rejects the example"),
    "ignore a number": (lambda m, p: obc.trace(m, X, ignore=3), "ignore"),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments(name: str, tmp_path: Path) -> None:
    call, text = CALLS[name]
    model = mlp()
    with untouched(model), pytest.raises(obc.ObcError, match=text) as refusal:
        call(model, tmp_path / "there")
    assert "\n" not in str(refusal.value).strip() or "rejects" in text
    assert not (tmp_path / "there").exists()
