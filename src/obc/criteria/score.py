"""`obc.score`: what every channel of every site is worth, by any criterion."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

from rich.progress import track
from torch import Tensor, nn

from obc.criteria.criterion import Criterion, make
from obc.criteria.evidence import Gatherer, scoring
from obc.criteria.reduce import check, reduce
from obc.criteria.shares import Shares
from obc.criteria.structure import parts_of
from obc.errors import ObcError
from obc.trace.sites import Sites

Loss = Callable[[Any, Any], Tensor]


def score(
    model: nn.Module,
    sites: Sites,
    batches: Iterable[Any] = (),
    loss: Loss | None = None,
    criterion: str | Criterion = "jacobian",
    *,
    aggregate: str = "sum",
    normalize: str = "none",
    fast: bool = True,
    **options: Any,
) -> dict[str, Tensor]:
    """Scores for every channel, by site name; the lowest are worth the least.

    `batches` is any iterable, `loss(model, batch)` a scalar; criteria that look at weights alone
    need neither. The model is scored in eval mode and is as it was afterwards. `fast=False` takes
    every product from weight gradients. In several processes each scores every n-th batch, and
    all end with the same scores.

    >>> import torch, obc
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> sites = obc.trace(net, torch.zeros(1, 4))
    >>> batches = [torch.ones(8, 4)] * 3
    >>> score(net, sites, batches, lambda m, x: m(x).square().mean())["0"].shape
    torch.Size([3])
    """
    chosen = make(criterion, **options)
    check(aggregate, normalize)
    if (aggregate, normalize) == ("mean", "mean"):
        warnings.warn("mean aggregation with mean normalisation is known to collapse", stacklevel=2)
    parts = {site.name: parts_of(site) for site in sites}
    if not parts:
        return {}
    shares = Shares()
    totals: dict[str, Tensor] = {}
    if chosen.evidence == "none":
        weights = {n: p.detach().double() for n, p in model.named_parameters()}
        for name, own in parts.items():
            rows = [(part, part.rows(weights), weights[part.members[0].name]) for part in own]
            totals[name] = chosen.site(rows)
    else:
        if loss is None:
            raise ObcError(
                "this criterion needs batches and a loss: score(model, sites, batches, loss)"
            )
        with shares.together(), scoring(model):
            gather = Gatherer(model, sites, parts, loss, chosen, fast)
            number = -1
            for number, batch in enumerate(track(batches, "scoring", **shares.progress())):
                if shares.mine(number):
                    for name, rows in gather.row(number, batch).items():
                        part = chosen.site(rows).double()
                        totals[name] = totals[name] + part if name in totals else part
            if number < 0:
                raise ObcError("there are no batches to score with")
        totals = shares.added(totals, parts)
    return {name: reduce(total, aggregate, normalize) for name, total in totals.items()}
