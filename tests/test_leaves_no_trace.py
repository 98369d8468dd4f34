"""After every verb, models that it only reads are what they were: bit for bit, by version too."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.cases import CASES, NOTHING_TO_PRUNE, Case, case
from tests.parameters import parameters
from tests.reference import random_kept
from tests.sensitive import run, tensors
from tests.untouched import untouched

QUICK = ("resnet20", "mobilenet_v2", "qkv_chunk", "glu_chunk", "tied_embedding", "bare_buffers")
OTHERS = [
    c
    for c in CASES
    if c.tags.isdisjoint(("torchvision", "timm", "slow")) and c.name not in NOTHING_TO_PRUNE
]


def loss(model: nn.Module, example: Any) -> Tensor:
    """The mean square of all that a model puts out."""
    return torch.stack([t.square().mean() for t in tensors(run(model, example))]).mean()


@contextmanager
def unread(model: nn.Module) -> Iterator[None]:
    """The model is the same, and no parameter was even written to and put back."""
    versions = {n: (p.shape, p._version) for n, p in model.named_parameters()}
    with untouched(model):
        yield
    assert {n: (p.shape, p._version) for n, p in model.named_parameters()} == versions


def check(chosen: Case, folder: Path) -> None:
    model, example = chosen.model(), chosen.example()
    with warnings.catch_warnings(), unread(model):
        warnings.simplefilter("ignore")
        sites = obc.trace(model, example)
        obc.cost(model, example)
        batches = [example, example]
        for criterion in ("jacobian", "l2"):
            obc.score(model, sites, batches, loss, criterion=criterion)
        channels = sum(site.size for site in sites)
        one_less = f"channels={100 * (channels - 1) / channels:.6f}%"
        obc.plan(model, example, batches, loss, target=one_less, step=0.1)
        pruned = obc.apply(
            copy.deepcopy(model), obc.Plan.from_kept(sites, random_kept(sites)), example=example
        )
        obc.recalibrate(pruned, model, batches, call=run)
    with unread(pruned):
        obc.save(pruned, folder / "artifact")
        obc.cost(pruned, example)


@pytest.mark.parametrize("name", QUICK)
def test_verbs_leave_models_alone(name: str, tmp_path: Path) -> None:
    check(case(name), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("chosen", parameters(*(c for c in OTHERS if c.name not in QUICK)))
def test_verbs_leave_all_models_alone(chosen: Case, tmp_path: Path) -> None:
    check(chosen, tmp_path)


def test_a_write_that_is_put_back_shows() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(AssertionError), unread(model), torch.no_grad():
        model.weight.mul_(1)
