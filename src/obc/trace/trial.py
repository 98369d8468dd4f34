"""Make every site one unit narrower, run the model again, and see that ids flow the same way.

The model's Python code may hold sizes that no tensor shows. So each trace ends with this check:
tracing the narrower model must give what narrowing the trace gives. Where it does not, the
choice or the site that is to blame is given up, and the reason kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from obc.trace import layers
from obc.trace.flow import Flow
from obc.trace.ledger import Place, Reason
from obc.trace.sites import Site, Sites
from obc.trace.solve import Classes, base_classes


Run = Callable[[Flow], object]


@dataclass
class Failure:
    """What went wrong: where, if the model raised an error, and the ids that were there."""

    place: Place | None
    ids: tuple[Tensor, ...]
    text: str


def kept_positions(
    model: nn.Module, sites: Iterable[Site], kept: Mapping[str, Sequence[int] | Tensor]
) -> dict[tuple[str, int], Tensor]:
    """What is left of each parameter dimension when these channels of each site are kept."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    left: dict[tuple[str, int], Tensor] = {}
    for site in sites:
        if site.name not in kept:
            continue
        gone = torch.ones(site.size, dtype=torch.bool)
        gone[torch.as_tensor(kept[site.name])] = False
        for m in (*site.members, *site.buffers):
            key = (m.name, m.dim)
            if key not in left:
                left[key] = torch.ones(tensors[m.name].shape[m.dim], dtype=torch.bool)
            left[key][m.index[gone].reshape(-1)] = False
    return {key: mask.nonzero().reshape(-1) for key, mask in left.items()}


def hollow(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """A tensor of the cut shape that takes no memory; buffers keep their values, for code reads them."""
    if not isinstance(tensor, nn.Parameter):
        return take(tensor, kept)
    shape = [len(kept[d]) if d in kept else n for d, n in enumerate(tensor.shape)]
    return nn.Parameter(tensor.detach().new_full((), 0.01).expand(shape), tensor.requires_grad)


def take(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """The kept positions of a tensor."""
    for dim, index in kept.items():
        tensor = tensor.detach().index_select(dim, index.to(tensor.device))
    return tensor


def attempt(model: nn.Module, sites: Sites, flow: Flow, base: Tensor, run: Run) -> Failure | None:
    """Narrow the model and run it; None when all went as the trace says."""
    # A site of two channels has no narrower form that still is one, so only errors count there.
    wide = [s for s in sites if s.size > 2]
    tight = [s for s in sites if s.size == 2]
    for some, compare in ((wide, True), (tight, False)):
        if some:
            failure = _attempt(model, some, flow, base, run, compare)
            if failure is not None:
                return failure
    return None


def _attempt(
    model: nn.Module, sites: list[Site], flow: Flow, base: Tensor, run: Run, compare: bool
) -> Failure | None:
    units = {s.name: [c for c in range(s.size) if c != s.size // 2] for s in sites}
    kept = kept_positions(model, sites, units)
    with layers.unchanged(model):
        layers.cut(model, kept, hollow)
        again = Flow(model, flow.find)
        try:
            run(again)
        except Exception as error:
            step = flow.steps[min(len(again.steps), len(flow.steps)) - 1]
            last = again.steps[-1] if again.steps else step
            return Failure(last.place, step.ids, f"fails when narrower: {_first_line(error)}")
        return _compare(flow, base, again, kept) if compare else None


def _compare(flow: Flow, base: Tensor, again: Flow, kept: dict[tuple[str, int], Tensor]) -> Failure | None:
    """Both runs must tie the same positions of the same parameters."""
    other = base_classes(again.ledger)
    theirs = {leaf.name: leaf for leaf in again.leaves.values()}
    ours_ids, their_ids = [], []
    for leaf in flow.leaves.values():
        twin = theirs.get(leaf.name)
        if twin is None:
            continue
        for dim, (mine, yours) in enumerate(zip(leaf.dims, twin.dims, strict=True)):
            if mine is not None and yours is not None:
                index = kept.get((leaf.name, dim))
                ours_ids.append(mine if index is None else mine[index])
                their_ids.append(yours)
    ids = torch.cat(ours_ids)
    ours, yours = base[ids], other[torch.cat(their_ids)]
    bad = _finer(ours, yours) | _finer(yours, ours)
    if not bad.any():
        return None
    return Failure(None, (ids[bad],), "couples other channels when narrower")


def _finer(a: Tensor, b: Tensor) -> Tensor:
    """Where one class of `a` meets several of `b`."""
    size = int(a.max()) + 1
    low = torch.full((size,), int(b.max()) + 1).scatter_reduce_(0, a, b, "amin")
    high = torch.full((size,), -1).scatter_reduce_(0, a, b, "amax")
    return (low != high)[a]


def blame(failure: Failure, flow: Flow, classes: Classes) -> list[tuple[Tensor, Reason]]:
    """Give up the options behind a failure; where none is left, freeze what was there.

    Layers repeat, so what fails on one line of the user's code is given up there in every layer.
    """
    ids = torch.cat([i.reshape(-1) for i in failure.ids]) if failure.ids else torch.empty(0).long()
    ids = ids[ids >= 0]
    place = failure.place
    touched = torch.zeros_like(classes.why, dtype=torch.bool)
    touched[classes.of[ids]] = True
    suspects = []
    for i, choice in enumerate(flow.ledger.choices):
        live = classes.taken[i] < len(choice.options) and not classes.frozen(choice.ids).all()
        here = place is not None and choice.place.module == place.module
        if live and (here or bool(touched[classes.of[choice.ids]].any())):
            suspects.append((i, choice))
    if suspects:
        lines = {c.place.line for _, c in suspects}
        for i, choice in enumerate(flow.ledger.choices):
            if choice.place.line in lines:
                choice.ruled_out.add(classes.taken[i])
        return []
    if place is None:
        return [(ids, Reason(failure.text, _place_of(flow, ids)))]
    same_line = [s.ids for s in flow.steps if s.place.line == place.line and s.place.op == place.op]
    same_kind = [s.ids for s in flow.steps if s.place.kind == place.kind]
    for steps in ([failure.ids], same_line, same_kind, [s.ids for s in flow.steps]):
        found = [i.reshape(-1) for step in steps for i in step]
        every = torch.cat(found) if found else ids
        every = every[every >= 0].unique()
        free = every[~classes.frozen(every)]
        if free.numel():
            return [(free, Reason(failure.text, place))]
    raise AssertionError("a model with nothing narrower fails only if it changes by itself")


def _place_of(flow: Flow, ids: Tensor) -> Place:
    """The first place where these ids were read."""
    wanted = set(ids.tolist())
    for step in flow.steps:
        if any(wanted.intersection(i.reshape(-1).tolist()) for i in step.ids):
            return step.place
    return flow.steps[0].place


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
