"""Every shared model, pruned equivalently: at the start the naive one, merged the plain one."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import obc
from obc.equivalent import is_equivalent
from obc.surgery.record import remember
from obc.surgery.slicing import sliced
from obc.tracing.narrow import narrow
from tests.cases import CASES, Case, run
from tests.parameters import parameters
from tests.reference import random_kept, relative_error
from tests.sensitive import tensors

ZOO = [c for c in CASES if not c.tags.isdisjoint(("torchvision", "timm"))]
OTHERS = [c for c in CASES if c not in ZOO]


@pytest.mark.parametrize("case", parameters(*OTHERS))
def test_small_models(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(*ZOO))
def test_the_zoo(case: Case) -> None:
    check(case)


def outputs(model: nn.Module, example: object) -> list[torch.Tensor]:
    with torch.no_grad():
        return tensors(run(model, example))


def check(case: Case) -> None:
    model, example = case.model(), case.example()
    sites = obc.trace(model, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    naive = copy.deepcopy(model)
    narrow(naive, sites, plan.kept, sliced)
    remember(naive, plan)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "sliced, without C and D")
        obc.apply(model, plan, example=example, equivalent=True)
    if not sites:
        assert not is_equivalent(model)
        return

    limit = 1e-6 if "single" in case.tags else 1e-12
    start = outputs(naive, example)
    assert relative_error(start, outputs(model, example)) < limit
    # Every entry of C and D is heard: those of removed channels too.
    move(model)
    moved = outputs(model, example)
    assert relative_error(start, moved) > 1e-4

    twin = copy.deepcopy(model)
    assert obc.merge(twin) is twin
    assert relative_error(moved, outputs(twin, example)) < limit
    assert relative_error(moved, outputs(model, example)) == 0, "merging a copy changed the model"
    assert portrait(twin) == portrait(naive)
    assert obc.cost(twin, example) == obc.cost(naive, example)


def move(model: nn.Module) -> None:
    """Away from the identity."""
    for name, p in model.named_parameters():
        if ".matrices." in name:
            p.data.add_(0.05 * torch.randn_like(p))


def portrait(model: nn.Module) -> list[object]:
    """Modules, their classes and settings, and what they hold, in order."""
    found: list[object] = []
    for path, module in model.named_modules():
        found.append((path, type(module), module.extra_repr(), sorted(vars(module))))
        for store in (module._parameters, module._buffers):
            found += [(k, t if t is None else (type(t), t.shape)) for k, t in store.items()]
        hooks = [v for k, v in vars(module).items() if "hooks" in k and isinstance(v, dict)]
        found.append([len(h) for h in hooks])
    return [*found, list(model.state_dict())]
