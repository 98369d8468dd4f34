"""`obc.apply`: cut what a plan removes, naively or with every connection kept in C and D."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import nn

from obc.equivalent.attach import attach, is_equivalent
from obc.equivalent.layout import Layout, lay_out
from obc.equivalent.start import start_from
from obc.errors import ObcError
from obc.plans.plan import Plan
from obc.recalibration.lockstep import Call
from obc.recalibration.origins import Origins
from obc.recalibration.recalibrate import recalibrate
from obc.running.checks import check_flag
from obc.running.difference import difference
from obc.running.forward import forward, outputs
from obc.running.modules import check_model, duplicate
from obc.running.offload import at_hand
from obc.running.snapshot import Snapshot, unchanged
from obc.surgery import slicing
from obc.tracing.experts import Moves, moved
from obc.tracing.narrow import moves_of


@at_hand
def apply(
    model: nn.Module,
    plan: Plan,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    example: Any = None,
    equivalent: bool = False,
    init: Literal["identity", "recalibrated"] | nn.Module = "identity",
    batches: Iterable[Any] = (),
    call: Call | None = None,
) -> nn.Module:
    """Remove what the plan removes, in place, and return the model.

    The model is traced, cut and run; its output must be that of the original with the removed
    channels masked. If anything fails, the model is as it was and the error says where.

    Args:
        model: a copy of the model that the plan was made for.
        plan: from `obc.plan`, `Plan.from_kept` or `Plan.load`.
        optimizer: its momentum and Adam buffers are sliced along.
        example: an input to run the model on, in place of the plan's.
        equivalent: keep every connection in C and D while the model is tuned.
        init: C and D start as the kept rows of the identity; with "recalibrated", the full
            weights are changed at what is kept, so that Ŵ starts where `obc.recalibrate` ends;
            with a model that was cut by this plan and recalibrated, so that Ŵ starts there.
        batches: what to recalibrate with, as for `obc.recalibrate`.
        call: how recalibration calls the model with a batch.

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
    _check(model, equivalent, init, optimizer)
    fitted = _fitted(model, plan, example, init, batches, call)
    if not equivalent:
        return slicing.apply(model, plan, optimizer=optimizer, example=example)
    before = Snapshot(model)
    whole = Whole(model)
    done = slicing.cut(model, plan, example=example)
    try:
        with unchanged(model):
            reference = outputs(forward(model, done.example))
        whole.rename(moves_of(done.sites, plan.kept))
        layout = lay_out(model, done.sites, plan.kept, whole.groups, whole.parameters)
        attach(model, layout, whole.parameters)
        with unchanged(model):
            difference(reference, outputs(forward(model, done.example)))
        if fitted is not None:
            start_from(model, *fitted, done.example)
        _tell(layout)
    except Exception as error:
        before.restore()
        raise ObcError(f"with C and D: {error}; the model is as it was") from error
    return model


def _check(model: nn.Module, equivalent: bool, init: str | nn.Module, optimizer: Any) -> None:
    check_model(model)
    check_flag("equivalent", equivalent)
    if is_equivalent(model):
        raise ObcError("the model holds factors of an equivalent pruning; obc.merge(model) first")
    if isinstance(init, str) and init not in ("identity", "recalibrated"):
        raise ObcError(f"no init named '{init}'; there are identity and recalibrated")
    if init != "identity" and not equivalent:
        raise ObcError("init is for equivalent=True; after a plain cut, call obc.recalibrate")
    if equivalent and optimizer is not None:
        raise ObcError(
            "equivalent pruning makes new parameters, C and D; leave optimizer out here and make "
            "it afterwards, from obc.parameter_groups(model, ...)"
        )


def _fitted(
    model: nn.Module,
    plan: Plan,
    example: Any,
    init: str | nn.Module,
    batches: Iterable[Any],
    call: Call | None,
) -> tuple[nn.Module, Origins] | None:
    """The model cut naively and recalibrated, and where its elements were."""
    if init == "identity":
        return None
    if isinstance(init, nn.Module):
        return init, Origins(init, model, example)
    cut = slicing.apply(duplicate(model), plan, example=example)
    recalibrate(cut, model, batches, call=call, example=example)
    return cut, Origins(cut, model, example)


class Whole:
    """What a cut takes away: the full parameters by name, and the groups of convolutions."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = dict(model.named_parameters())
        self.groups = {
            n: m.groups for n, m in model.named_modules() if isinstance(m, nn.modules.conv._ConvNd)
        }

    def rename(self, where: Moves) -> None:
        """Call all by the names that they have after a cut, in which experts of a list went."""
        self.parameters = {
            new: p for n, p in self.parameters.items() if (new := moved(n, where)) is not None
        }
        self.groups = {
            new: g for n, g in self.groups.items() if (new := moved(n, where)) is not None
        }


def _tell(layout: Layout) -> None:
    """Say which weights have no factors though they might be expected to."""
    if layout.sliced:
        said = "; ".join(f"'{name}': {why}" for name, why in layout.sliced.items())
        warnings.warn(f"sliced, without C and D: {said}", stacklevel=3)
