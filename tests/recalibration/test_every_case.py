"""Every shared model, cut at random and recalibrated: no further from the original than before."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import obc
from obc.running.forward import arguments
from tests.cases import CASES, Case
from tests.parameters import parameters
from tests.reference import random_kept

ZOO = [c for c in CASES if not c.tags.isdisjoint(("torchvision", "timm"))]
QUICK = {"mobilenet_v2", "groups_crossing", "squeeze_excite", "glu_chunk", "instance_norm", "mha"}


def call(model: nn.Module, batch: Any) -> Any:
    args, kwargs = arguments(batch)
    return model(*args, **kwargs)


@pytest.mark.parametrize("case", parameters(*(c for c in CASES if c.name in QUICK)))
def test_some(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", parameters(*(c for c in CASES if c not in ZOO)))
def test_all_but_the_zoo(case: Case) -> None:
    check(case)


def check(case: Case) -> None:
    model, example = case.model(), case.example()
    sites = obc.trace(model, example)
    if not sites:
        return
    small = obc.apply(
        copy.deepcopy(model), obc.Plan.from_kept(sites, random_kept(sites)), example=example
    )
    generator = torch.Generator().manual_seed(0)

    def drawn(x: Any) -> Any:
        floats = isinstance(x, Tensor) and x.is_floating_point()
        return torch.randn(x.shape, generator=generator, dtype=x.dtype) if floats else x

    batches = [tree_map(drawn, example) for _ in range(16)]
    account = obc.recalibrate(small, model, batches, call=call, example=example)
    assert account.fits
    assert all(f.after <= f.before for f in account.fits if f.kept and f.before is not None)
    if account.kept:
        assert account.after < account.before
    assert account.kept or not any(f.kept for f in account.fits) or account.after >= account.before
