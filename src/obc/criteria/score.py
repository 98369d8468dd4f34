"""`obc.score`: what every channel of every site is worth, by any criterion."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from obc.criteria.checkpointing import checkpointed
from obc.criteria.criterion import Criterion, make
from obc.criteria.evidence import Findings, Gatherer, scoring
from obc.criteria.layout import may_be_channels_last, relaid
from obc.criteria.reading import Reading
from obc.criteria.reduce import check, reduce
from obc.criteria.structure import Part, parts_of
from obc.errors import ObcError
from obc.running.checks import check_batches, check_flag, check_function
from obc.running.offload import at_hand
from obc.running.processes import Group
from obc.running.progress import bar
from obc.tracing.sites import Sites

Loss = Callable[[Any, Any], Tensor]


@at_hand
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
    checkpoint: bool = False,
    **options: Any,
) -> dict[str, Tensor]:
    """Scores for every channel, by site name; the lowest are worth the least.

    S⁽¹⁾ of each structural parameter, a channel's share of one layer, is summed over the batches,
    aggregated over the layers of the channel and, if asked for, normalised over its site. The
    model is scored in eval mode and is as it was afterwards. In several processes each scores
    every n-th batch, and all end with the same scores.

    Args:
        model: the model; its weights are not changed.
        sites: of this model, from `obc.trace`.
        batches: any iterable; criteria that look at weights alone need none.
        loss: `loss(model, batch)`, a scalar; criteria that look at weights alone need none.
        criterion: a name ("jacobian", "taylor", "hessian", "l1", "l2", "bn_scale", "fpgm", "whc",
            "random", "redundancy", or one registered by `obc.criterion`), or an instance.
        aggregate: "sum" (the paper's), "mean" or "max" over the layers of a channel.
        normalize: "none" (the paper's), "mean" or "max" over the channels of a site.
        fast: take products from activations where that is exact; False takes every product from
            the gradients of weights.
        checkpoint: keep the input of each block alone and run blocks again for their gradients:
            memory that does not grow with depth, for one more forward pass.
        options: of the criterion, such as `expected=True` or `block="group"`.

    >>> import torch, obc
    >>> net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> sites = obc.trace(net, torch.zeros(1, 4))
    >>> batches = [torch.ones(8, 4)] * 3
    >>> score(net, sites, batches, lambda m, x: m(x).square().mean())["0"].shape
    torch.Size([3])
    """
    chosen = make(criterion, **options)
    check(aggregate, normalize)
    check_batches(batches)
    check_flag("fast", fast)
    check_flag("checkpoint", checkpoint)
    Sites.checked(sites).check(model)
    if not len(sites):
        return {}
    scorer = Scorer(model, sites, loss, chosen, fast, checkpoint=checkpoint)
    totals = scorer.totals(bar(batches, "scoring", scorer.group))
    return {name: reduce(total, aggregate, normalize) for name, total in totals.items()}


class Scorer:
    """Scores a model and later cuts of it; how each layer is looked at is decided only once.

    With `names`, only these sites are scored where that takes gradients: the residual width of a
    decoder is written and read by all its layers.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Sites,
        loss: Loss | None,
        criterion: Criterion,
        fast: bool = True,
        names: Collection[str] | None = None,
        checkpoint: bool = False,
    ) -> None:
        self.model, self.criterion = model, criterion
        self.group = Group()
        by_weights = criterion.evidence == "none"
        self._names = set(sites.names if names is None or by_weights else names)
        self._parts = self._parts_of(sites)
        self._gather: Gatherer | None = None
        self._checkpoint = checkpoint
        if checkpoint and (criterion.evidence == "square" or criterion.per_sample):
            raise ObcError("checkpoint: single samples run together, and cannot run again by block")
        if criterion.evidence != "none":
            if loss is None:
                raise ObcError(
                    "this criterion needs batches and a loss: score(model, sites, batches, loss)"
                )
            check_function("loss", loss)
            self._gather = Gatherer(model, sites, self._parts, loss, criterion, fast, checkpoint)
            self._relay = sites.example is not None and may_be_channels_last(model, sites.example)
            self._loss, self._wiring = loss, sites.wiring

    def follow(self, sites: Sites) -> None:
        """The model was cut in place; these are its sites now."""
        self._parts = self._parts_of(sites)
        if self._gather is not None:
            self._gather.follow(self._parts)

    def totals(self, batches: Iterable[Any]) -> dict[str, Tensor]:
        """The scores of every site's members, summed over the batches: [members, size]."""
        totals: dict[str, Tensor] = {}
        if self._gather is None:
            weights = {n: p.detach() for n, p in self.model.named_parameters()}
            for name, parts in self._parts.items():
                # In double precision only while they are looked at, for copies are large.
                each = ((p, p.rows(weights).double(), p.members[0].of(weights)) for p in parts)
                if type(self.criterion).site is Criterion.site:
                    totals[name] = torch.stack([self.criterion.measure(*part) for part in each])
                else:
                    totals[name] = self.criterion.site(list(each))
            return totals
        layout = relaid(self.model) if self._relay else nullcontext()
        again = checkpointed(self.model) if self._checkpoint else nullcontext()
        joint = self.criterion.joint
        reading = Reading(self.model, self._parts if joint else {}, self._wiring)
        with self.group.together(), scoring(self.model), layout, again:
            number = -1
            for number, batch in enumerate(batches):
                if self.group.mine(number):
                    for name, rows in self._gather.row(number, batch).items():
                        new = self.criterion.site(rows).double()
                        totals[name] = totals[name] + new if name in totals else new
                    if joint:
                        reading.take(partial(self._loss, self.model, batch))
            if number < 0:
                raise ObcError("there are no batches to score with")
        sizes = {n: parts[0].size for n, parts in self._parts.items()}
        sums = self.group.added(totals, sizes)
        scores = {n: self.criterion.scores(total, number + 1) for n, total in sums.items()}
        return self.criterion.together(scores, reading.places(self.group))

    def findings(self) -> Findings | None:
        """How each layer is looked at, to be given to `recall` of a scorer in another process."""
        return None if self._gather is None else self._gather.findings()

    def recall(self, findings: Findings | None) -> None:
        if self._gather is not None and findings is not None:
            self._gather.recall(findings)

    def _parts_of(self, sites: Sites) -> dict[str, list[Part]]:
        return {site.name: parts_of(site) for site in sites if site.name in self._names}
