"""`obc.apply`: cut what a plan removes, naively or with every connection kept in C and D."""

from __future__ import annotations

import copy
import warnings
from typing import Any, Literal

import torch
from torch import nn

from obc.equivalent.attach import attach, is_equivalent
from obc.equivalent.inserted import insert, norms_behind
from obc.equivalent.layout import Layout, lay_out
from obc.errors import ObcError
from obc.plans.plan import Plan
from obc.running.difference import difference
from obc.running.forward import forward, outputs
from obc.running.snapshot import Snapshot, unchanged
from obc.surgery import slicing

FORMS = ("folded", "inserted", "inserted-bn")


def apply(
    model: nn.Module,
    plan: Plan,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    example: Any = None,
    equivalent: bool = False,
    form: Literal["folded", "inserted", "inserted-bn"] = "folded",
    init: Literal["identity"] = "identity",
) -> nn.Module:
    """Remove what the plan removes, in place, and return the model.

    The model is traced, cut and run; its output must be that of the original with the removed
    channels masked. If anything fails, the model is as it was and the error says where. With
    `optimizer`, momentum and Adam buffers are sliced along. `example` replaces the plan's own.

    >>> from obc import trace
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> apply(net, Plan.from_kept(trace(net, torch.zeros(1, 4)), {"0": [0, 2, 5]}))
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
      (2): Linear(in_features=3, out_features=2, bias=True)
    )

    With `equivalent=True` the layers keep their full weights and compute with Ŵ = C W Dᵀ, at
    first the same as the cut ones; `obc.merge` folds them when tuning is done. `form="inserted"`
    builds the same network with C and D as layers of their own, as printed in the paper, and
    "inserted-bn" with C behind the batch norm and a new norm behind C: slower, for comparison.
    """
    _check(model, equivalent, form, init, optimizer)
    if not equivalent:
        return slicing.apply(model, plan, optimizer=optimizer, example=example)
    before = Snapshot(model)
    whole = Whole(model)
    done = slicing.cut(model, plan, example=example)
    try:
        with unchanged(model):
            reference = outputs(forward(model, done.example))
        layout = lay_out(model, done.sites, plan.kept, whole.groups, whole.parameters)
        if form == "folded":
            attach(model, layout, whole.parameters)
        else:
            norms = norms_behind(model, layout, done.example) if form == "inserted-bn" else {}
            insert(model, layout, whole.modules, norms)
        with unchanged(model):
            difference(reference, outputs(forward(model, done.example)))
        _tell(layout)
    except Exception as error:
        before.restore()
        raise ObcError(f"with C and D ({form}): {error}; the model is as it was") from error
    return model


def _check(model: nn.Module, equivalent: bool, form: str, init: str, optimizer: Any) -> None:
    if is_equivalent(model):
        raise ObcError("the model holds factors of an equivalent pruning; obc.merge(model) first")
    if form not in FORMS:
        raise ObcError(f"no form named '{form}'; there are {', '.join(FORMS)}")
    if init != "identity":
        raise ObcError(f"no init named '{init}'; there is identity")
    if not equivalent and form != "folded":
        raise ObcError(f"form='{form}' is for equivalent=True")
    if equivalent and optimizer is not None:
        raise ObcError(
            "equivalent pruning makes new parameters, C and D; leave optimizer out here and make "
            "it afterwards, from obc.parameter_groups(model, ...)"
        )


class Whole:
    """What a cut takes away: parameters by name, groups of convolutions, layers as they were."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = dict(model.named_parameters())
        self.groups = {
            n: m.groups for n, m in model.named_modules() if isinstance(m, nn.modules.conv._ConvNd)
        }
        self.modules = {n: _twin(m) for n, m in model.named_modules()}


def _twin(module: nn.Module) -> nn.Module:
    """The same module once more: its own attributes and dictionaries, the same tensors."""
    twin = object.__new__(type(module))
    twin.__dict__ = {k: copy.copy(v) if isinstance(v, dict) else v for k, v in vars(module).items()}
    return twin


def _tell(layout: Layout) -> None:
    """Say which weights have no factors though they might be expected to."""
    if layout.sliced:
        said = "; ".join(f"'{name}': {why}" for name, why in layout.sliced.items())
        warnings.warn(f"sliced, without C and D: {said}", stacklevel=3)
