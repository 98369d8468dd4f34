"""Make every site one unit narrower, run the model again, and see that ids flow the same way.

The model's Python code may hold sizes that no tensor shows. So each trace ends with this check:
tracing the narrower model must give what narrowing the trace gives. Where it does not, the
choice or the site that is to blame is given up, and the reason kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from obc.trace import layers
from obc.trace.flow import Flow, user_line
from obc.trace.ledger import Place, Reason
from obc.trace.sites import Site, Sites
from obc.trace.solve import Classes, base_classes


Run = Callable[[Flow], object]


@dataclass
class Failure:
    """What went wrong in a narrower model, and where."""

    place: Place
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


def failures(
    model: nn.Module, sites: Sites, flow: Flow, base: Tensor, run: Run
) -> list[tuple[list[Site], Failure]]:
    """Narrow the model and run it: the sites that cannot be narrowed, and how they fail.

    Layers repeat, so sites whose names differ in numbers only are tried and given up together.
    """

    def attempt(some: list[Site]) -> Failure | None:
        # A site of two channels has no narrower form that still is one, so only errors count there.
        wide = [s for s in some if s.size > 2]
        tight = [s for s in some if s.size == 2]
        failure = _attempt(model, wide, flow, base, run, True) if wide else None
        if failure is None and tight:
            failure = _attempt(model, tight, flow, base, run, False)
        return failure

    if attempt(list(sites)) is None:
        return []
    groups: dict[str, list[Site]] = {}
    for site in sites:
        groups.setdefault(re.sub(r"\d+", "*", site.name), []).append(site)
    fine: list[Site] = []
    found = []
    for group in groups.values():
        failure = attempt([*fine, *group])
        if failure is None:
            fine += group
        else:
            found.append((group, failure))
    return found


def _attempt(
    model: nn.Module, sites: list[Site], flow: Flow, base: Tensor, run: Run, compare: bool
) -> Failure | None:
    # About a third goes, at even distances: one channel less can pass where two do not.
    units = {s.name: [c for c in range(s.size) if c % 3 != 1] for s in sites}
    kept = kept_positions(model, sites, units)
    with layers.unchanged(model):
        layers.cut(model, kept, hollow)
        again = Flow(model, flow.find)
        try:
            run(again)
        except Exception as error:
            last = (again.steps or flow.steps)[-1].place
            return Failure(_where(error, model, last), f"fails when narrower: {_first_line(error)}")
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
    return Failure(_reader(flow, ids[bad]), "couples other channels when narrower")


def _reader(flow: Flow, ids: Tensor) -> Place:
    """The first place where one of these ids was met."""
    wanted = torch.zeros(flow.ledger.size, dtype=torch.bool)
    wanted[ids] = True
    met = (s.place for s in flow.steps if any(bool(wanted[i[i >= 0]].any()) for i in s.ids))
    return next(met, flow.steps[0].place)


def _finer(a: Tensor, b: Tensor) -> Tensor:
    """Where one class of `a` meets several of `b`."""
    size = int(a.max()) + 1
    low = torch.full((size,), int(b.max()) + 1).scatter_reduce_(0, a, b, "amin")
    high = torch.full((size,), -1).scatter_reduce_(0, a, b, "amax")
    return (low != high)[a]


def give_up(
    group: list[Site], failure: Failure, flow: Flow, classes: Classes
) -> list[tuple[Tensor, Reason]]:
    """Rule out the option that a failure speaks against; where none is left, freeze the sites."""
    ids = _ids_of(group, flow)
    mine = torch.zeros_like(classes.why, dtype=torch.bool)
    mine[classes.of[ids]] = True
    live = [
        i
        for i, choice in enumerate(flow.ledger.choices)
        if classes.taken[i] < len(choice.options) and bool(mine[classes.of[choice.ids]].any())
    ]
    lines = {flow.ledger.choices[i].place.line: None for i in live}
    line = failure.place.line if failure.place.line in lines else next(iter(lines), None)
    for i in live:
        if flow.ledger.choices[i].place.line == line:
            flow.ledger.choices[i].ruled_out.add(classes.taken[i])
    return [] if live else [(ids, Reason(failure.text, failure.place))]


def _ids_of(group: list[Site], flow: Flow) -> Tensor:
    leaves = {leaf.name: leaf for leaf in flow.leaves.values()}
    found = []
    for site in group:
        member = site.members[0]
        ids = leaves[member.name].dims[member.dim]
        assert ids is not None
        found.append(ids[member.index.reshape(-1)])
    return torch.cat(found)


def _where(error: BaseException, model: nn.Module, last: Place) -> Place:
    """The innermost module and line of the user's code that an error came through."""
    paths = {id(m): n for n, m in model.named_modules()}
    place, frames = last, error.__traceback__
    while frames is not None:
        owner = frames.tb_frame.f_locals.get("self")
        if id(owner) in paths:
            place = Place(paths[id(owner)], type(owner).__name__, last.op, place.line)
        line = user_line(frames.tb_frame, frames.tb_lineno)
        if line:
            place = Place(place.module, place.kind, "-", line)
        frames = frames.tb_next
    return place


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
