"""Folded and inserted are one network: they train alike, and merge to the same plain module."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.equivalent.factors import Mix
from tests.cases import case, run
from tests.inserted import apply_inserted, merge_inserted
from tests.reference import random_kept, relative_error
from tests.sensitive import tensors

Optimizer = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": lambda groups: torch.optim.SGD(groups, momentum=0.9),
    "adamw": lambda groups: torch.optim.AdamW(groups),
}
# Convolutions with norms and a flatten, residual, grouped, transposed, linear with a gate.
QUICK = [
    *(("flatten_7x7", "sgd"), ("flatten_7x7", "adamw"), ("resnet20", "sgd")),
    *(("groups_two", "sgd"), ("groups_two", "adamw"), ("transposed_groups", "sgd")),
    *(("glu_chunk", "sgd"), ("glu_chunk", "adamw"), ("qkv_unbind", "sgd")),
]
# More of them, and depthwise, joined, concatenated, HF's Conv1D.
SLOW = [
    *(("resnet20", "adamw"), ("vgg19", "sgd"), ("vgg19", "adamw"), ("qkv_unbind", "adamw")),
    *(("mobilenet_v2", "sgd"), ("mobilenet_v2", "adamw"), ("unet", "sgd"), ("unet", "adamw")),
    *(("densenet", "sgd"), ("densenet", "adamw"), ("gpt2", "sgd"), ("gpt2", "adamw")),
    *(("groups_crossing", "sgd"), ("groups_crossing", "adamw"), ("transposed_groups", "adamw")),
]


def pruned(name: str, form: str) -> tuple[nn.Module, Any]:
    """A case at 30%, in the given form, or cut naively."""
    model, example = case(name).model(), case(name).example()
    for m in model.modules():
        if isinstance(m, nn.Dropout):
            m.p = 0.0
    sites = obc.trace(model, example)
    plan = obc.Plan.from_kept(sites, random_kept(sites))
    if form == "naive":
        return obc.apply(model, plan, example=example), example
    if form == "folded":
        return obc.apply(model, plan, example=example, equivalent=True), example
    return apply_inserted(model, plan, example, behind_norm=form == "inserted-bn"), example


def merged(model: nn.Module, form: str) -> nn.Module:
    twin = copy.deepcopy(model)
    return obc.merge(twin) if form == "folded" else merge_inserted(twin)


def train(model: nn.Module, example: Any, optimizer: Optimizer, ep_lr: float) -> nn.Module:
    """Twenty steps towards outputs that somebody else drew."""
    model.train()
    step = optimizer(obc.parameter_groups(model, 1e-3, 1e-2, ep_lr, 3e-3))
    goals = [
        torch.randn(t.shape, generator=torch.Generator().manual_seed(i), dtype=t.dtype)
        for i, t in enumerate(tensors(run(model, example)))
    ]
    for _ in range(20):
        step.zero_grad()
        found = tensors(run(model, example))
        loss = torch.stack(
            [(t - g).square().mean() for t, g in zip(found, goals, strict=True)]
        ).sum()
        loss.backward()
        step.step()
    return model


def outputs(model: nn.Module, example: Any) -> list[Tensor]:
    with torch.no_grad():
        return tensors(run(model.eval(), example))


def matrices(model: nn.Module) -> list[Tensor]:
    return [p for m in model.modules() if isinstance(m, Mix) for p in m.parameters()]


@pytest.mark.filterwarnings("ignore:sliced, without C and D")
@pytest.mark.parametrize(
    ("name", "optimizer"), [*QUICK, *(pytest.param(*s, marks=pytest.mark.slow) for s in SLOW)]
)
def test_folded_trains_the_printed_network(name: str, optimizer: str) -> None:
    found, plain = {}, {}
    for form in ("folded", "inserted"):
        model, example = pruned(name, form)
        start = outputs(model, example)
        train(model, example, OPTIMIZERS[optimizer], ep_lr=2e-3)
        found[form] = outputs(model, example)
        assert relative_error(start, found[form]) > 1e-4, "nothing was learned"
        still = [m for m in matrices(model) if not (m.grad is not None and m.grad.any())]
        assert not still, "a C or D had no part in it"
        plain[form] = merged(model, form)
        assert relative_error(found[form], outputs(plain[form], example)) < 1e-12
    assert relative_error(found["folded"], found["inserted"]) < 1e-9
    assert repr(plain["folded"]) == repr(plain["inserted"]) == repr(pruned(name, "naive")[0])


@pytest.mark.parametrize("name", ["groups_two", "glu_chunk"])
def test_other_rates_for_c_and_d_show(name: str) -> None:
    """The control: twenty steps are enough to tell two trainings apart."""
    found = []
    for rate in (2e-3, 2.1e-3):
        model, example = pruned(name, "folded")
        found.append(outputs(train(model, example, OPTIMIZERS["sgd"], rate), example))
    assert relative_error(*found) > 1e-7


@pytest.mark.parametrize(
    "name", ["flatten_7x7", "resnet20", "mobilenet_v2", "unet", "batch_norm_plain"]
)
def test_behind_the_batch_norm(name: str) -> None:
    """The appendix variant starts as the naive network, in training too, and merges."""
    naive, example = pruned(name, "naive")
    model, _ = pruned(name, "inserted-bn")
    assert relative_error(outputs(naive, example), outputs(model, example)) < 1e-12
    with torch.no_grad():
        trained = [tensors(run(m.train(), example)) for m in (naive, model)]
    assert relative_error(*trained) < 1e-2, "the new norm is no identity in training"
    train(model, example, OPTIMIZERS["sgd"], ep_lr=2e-3)
    found = outputs(model, example)
    plain = merged(model, "inserted-bn")
    assert relative_error(found, outputs(plain, example)) < 1e-9
    assert repr(plain) == repr(naive)
    assert list(plain.state_dict()) == list(naive.state_dict())


def test_forms_that_cannot_be_built() -> None:
    for name, form, says in (
        ("mha", "inserted", "nothing can be inserted around 'attention.in_proj_weight'"),
        ("glu_chunk", "inserted-bn", "followed by a batch norm"),
    ):
        with pytest.raises(obc.ObcError, match=says):
            pruned(name, form)
