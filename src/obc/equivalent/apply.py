"""`obc.apply`: cut what a plan removes, naively or with every connection kept in C and D."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from torch import nn

from obc.equivalent.attach import attach, is_equivalent
from obc.equivalent.layout import Layout, lay_out
from obc.errors import ObcError
from obc.planning.plan import Plan
from obc.surgery.slicing import cut
from obc.trace.layers import Snapshot, unchanged
from obc.trace.masked import difference
from obc.trace.running import forward, outputs


def apply(
    model: nn.Module,
    plan: Plan,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    example: Any = None,
    equivalent: bool = False,
    form: Literal["folded"] = "folded",
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
    first the same as the cut ones; `obc.merge` folds them when tuning is done.
    """
    if is_equivalent(model):
        raise ObcError("the model holds factors of an equivalent pruning; obc.merge(model) first")
    if not equivalent:
        cut(model, plan, optimizer=optimizer, example=example)
        return model
    if optimizer is not None:
        raise ObcError(
            "equivalent pruning makes new parameters, C and D; leave optimizer out here and make "
            "it afterwards, from obc.parameter_groups(model, ...)"
        )
    before = Snapshot(model)
    kinds = [(m, m.__class__) for m in model.modules()]
    full = dict(model.named_parameters())
    groups = {n: int(m.groups) for n, m in model.named_modules() if hasattr(m, "groups")}
    done = cut(model, plan, example=example)
    try:
        with unchanged(model):
            reference = outputs(forward(model, done.example))
        layout = lay_out(model, done.sites, plan.kept, groups, full)
        attach(model, layout, full)
        with unchanged(model):
            difference(reference, outputs(forward(model, done.example)))
    except Exception as error:
        for module, kind in kinds:
            module.__class__ = kind
        before.restore()
        raise ObcError(f"{error}; the model is as it was") from error
    _tell(layout)
    return model


def _tell(layout: Layout) -> None:
    """Say which weights have no factors though they might be expected to."""
    if layout.sliced:
        said = "; ".join(f"'{name}': {why}" for name, why in layout.sliced.items())
        warnings.warn(f"sliced, without C and D: {said}", stacklevel=3)
