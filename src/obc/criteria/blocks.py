"""A look inside: the blocks of J^T J that belong to single filters of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from obc.criteria.evidence import Gatherer, scoring
from obc.criteria.structure import parts_of
from obc.criteria.taylor import Taylor
from obc.errors import ObcError, closest
from obc.running.checks import check_batches, check_function
from obc.running.modules import check_model
from obc.tracing.sites import Sites


def jacobian_blocks(
    model: nn.Module,
    sites: Sites,
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Tensor],
    layer: str,
) -> Tensor:
    """J_mᵀ J_m for each filter of a layer, bias last: [filters, d, d], as in the paper's figures.

    The score of a filter by the Jacobian Criterion is wᵀ B w with its block B.

    Args:
        model: scored in eval mode, and as it was afterwards.
        sites: of this model, from `obc.trace`.
        batches: one row of J for each.
        loss: `loss(model, batch)`, a scalar.
        layer: the name of a layer that puts out a site's channels.

    >>> import obc
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> sites = obc.trace(net, torch.zeros(1, 4))
    >>> loss = lambda model, x: model(x).square().mean()
    >>> jacobian_blocks(net, sites, [torch.ones(8, 4)] * 2, loss, "0").shape
    torch.Size([3, 5, 5])
    """
    check_model(model)
    check_batches(batches)
    check_function("loss", loss)
    Sites.checked(sites).check(model)
    parts = {p.layer: p for site in sites for p in parts_of(site) if p.role == "out"}
    if not isinstance(layer, str) or layer not in parts:
        near = closest(str(layer), parts)
        raise ObcError(f"no layer {layer!r} puts out a site's channels{near}", section="names")
    part = parts[layer]
    total: Tensor | None = None
    with scoring(model):
        gather = Gatherer(model, sites, {part.site: [part]}, loss, Taylor(), fast=False)
        for number, batch in enumerate(batches):
            _, _, g = gather.row(number, batch)[part.site][0]
            g = g.double()
            block = torch.einsum("md,me->mde", g, g)
            total = block if total is None else total + block
    if total is None:
        raise ObcError("there are no batches to score with")
    return total
