"""Calls with the wrong arguments are refused in one sentence, and nothing is touched."""

from __future__ import annotations

import copy
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


def plan_of(model: nn.Module) -> obc.Plan:
    return obc.Plan.from_kept(obc.trace(model, X), {"0": [0, 1]})


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
    "ignore a list of numbers": (lambda m, p: obc.trace(m, X, ignore=[3]), "ignore is the name"),
    "plan ignores a number": (lambda m, p: planned(m, ignore=3), "ignore is the name of a layer"),
    "plan for a number of sites": (lambda m, p: planned(m, sites=3), "sites is the name of a site"),
    "no rows": (lambda m, p: planned(m, rows=None), "rows is a whole number from 1"),
    "resume a number": (lambda m, p: planned(m, resume=3), "resume is a string or a pathlib.Path"),
    "a task that is a number": (lambda m, p: planned(m, task=3), "3 lacks example, calibration"),
    "prune for a number": (
        lambda m, p: obc.prune(m, X, [X], loss, target="macs=2x", task=3),
        "task is one of obc.tasks",
    ),
    "score without sites": (lambda m, p: obc.score(m, None, [X], loss), "sites are what obc.trace"),
    "score text": (lambda m, p: scored(m, "text", loss), "batches are a list or a loader"),
    "aggregate by a list": (lambda m, p: scored(m, aggregate=[]), "aggregate must be one of"),
    "normalize by a dict": (lambda m, p: scored(m, normalize={}), "normalize must be one of"),
    "blocks of a list": (
        lambda m, p: obc.jacobian_blocks(m, obc.trace(m, X), [X], loss, []),
        "no layer",
    ),
    "blocks without a model": (
        lambda m, p: obc.jacobian_blocks(None, NARROW, [X], loss, "0"),
        "a model is a torch.nn.Module",
    ),
    "keep a list": (lambda m, p: obc.Plan.from_kept(obc.trace(m, X), [1]), "kept has a list of"),
    "load a plan from a number": (lambda m, p: obc.Plan.load(3), "path is a string or"),
    "an optimizer that is a list": (
        lambda m, p: obc.apply(m, plan_of(m), optimizer=[]),
        "optimizer is a torch.optim.Optimizer",
    ),
    "merge nothing": (lambda m, p: obc.merge(None), "a model is a torch.nn.Module"),
    "groups of nothing": (lambda m, p: obc.parameter_groups(None, 0.1), "a model is a torch.nn"),
    "recalibrate with nothing": (lambda m, p: obc.recalibrate(m, m, None), "batches are a list"),
    "recalibrate with no samples": (
        lambda m, p: obc.recalibrate(m, m, [X], samples=None),
        "samples is a whole number from 1",
    ),
    "recalibrate by a number": (
        lambda m, p: obc.recalibrate(m, m, [X], call=3),
        "call is a function of a model and a batch",
    ),
    "recalibrate by a seed in words": (
        lambda m, p: obc.recalibrate(m, m, [X], seed="x"),
        "seed is a whole number",
    ),
    "save to a number": (lambda m, p: obc.save(m, 3), "path is a string or a pathlib.Path"),
    "save nowhere": (lambda m, p: obc.save(m, ""), "path is empty"),
    "save in bytes": (lambda m, p: obc.save(m, b"x"), "path is a string or a pathlib.Path"),
    "save under a number": (lambda m, p: obc.save(m, p, reference=3), "reference is the name"),
    "save in no shards": (
        lambda m, p: obc.save(m, p, max_shard_size=0),
        "max_shard_size is a whole number from 1",
    ),
    "load from a number": (lambda m, p: obc.load(m, 3), "path is a string or a pathlib.Path"),
    "export beside a number": (
        lambda m, p: obc.export(m, X, p.with_suffix(".onnx"), original=3),
        "a model is a torch.nn.Module",
    ),
    "heads by an empty tensor": (
        lambda m, p: obc.trace(m, X, heads=torch.zeros(0)),
        "heads is True or False",
    ),
    "score fast by a tensor": (lambda m, p: scored(m, fast=torch.zeros(2)), "fast is True or"),
    "a flag for uniform": (lambda m, p: planned(m, uniform=torch.zeros(0)), "uniform is True or"),
    "C and D by a tensor": (
        lambda m, p: obc.apply(m, plan_of(m), equivalent=torch.zeros(0)),
        "equivalent is True or False",
    ),
    "details by a tensor": (
        lambda m, p: obc.prune(m, X, [X], loss, target="macs=2x", details=torch.zeros(0)),
        "details is True or False",
    ),
    "residuals by a tensor": (
        lambda m, p: obc.recalibrate(m, m, [X], residual=torch.zeros(0)),
        "residual is True or False",
    ),
    "recalibrate by a call of nothing": (
        lambda m, p: obc.recalibrate(m, m, [X], call=lambda: X),
        "call is a function of a model and a batch",
    ),
    "prune by a call of nothing, found before planning": (
        lambda m, p: obc.prune(m, X, [X], None, target="macs=2x", call=lambda: X),
        "call is a function of a model and a batch",
    ),
    "prune with a negative number of samples": (
        lambda m, p: obc.prune(m, X, [X], None, target="macs=2x", samples=-1),
        "samples is a whole number from 0",
    ),
    "a loss of nothing": (lambda m, p: planned(m, loss=lambda: 0), "loss is a function of a model"),
    "recalibrate with other batches": (
        lambda m, p: obc.recalibrate(
            obc.apply(copy.deepcopy(m), plan_of(m)), m, [torch.zeros(2, 9)]
        ),
        "a batch to recalibrate with failed",
    ),
    "a target in words": (lambda m, p: obc.MACs(speedup="2x"), "the speed-up is a number"),
    "a share in a list": (lambda m, p: obc.Params(keep=[0.5]), "the share to keep is a number"),
    "a runtime that is a list": (
        lambda m, p: obc.Latency(speedup=2, runtime=[]),
        "no runtime named",
    ),
    "save a plan to a number": (lambda m, p: plan_of(m).save(3), "path is a string or a pathlib"),
    "evaluate nothing": (lambda m, p: obc.evaluate(None, [(X, X)]), "a model is a torch.nn.Module"),
    "tune what has no weights": (
        lambda m, p: obc.finetune(
            nn.Identity(), [X], recipe=obc.Recipe(epochs=1, lr=0.1, batch_size=2)
        ),
        "there is nothing to tune",
    ),
    "call back a number": (
        lambda m, p: obc.finetune(
            m, [X], recipe=obc.Recipe(epochs=1, lr=0.1, batch_size=2), callback=3
        ),
        "callback is a function",
    ),
    "report on a number": (lambda m, p: obc.report(3), "folder is a string or a pathlib.Path"),
    "tune nothing": (
        lambda m, p: obc.finetune(None, [X], recipe=obc.Recipe(epochs=1, lr=0.1, batch_size=2)),
        "a model is a torch.nn.Module",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_arguments(name: str, tmp_path: Path) -> None:
    call, text = CALLS[name]
    model = mlp()
    with untouched(model), pytest.raises(obc.ObcError, match=text) as refusal:
        call(model, tmp_path / "there")
    assert "\n" not in str(refusal.value).strip() or "rejects" in text
    assert not (tmp_path / "there").exists()
