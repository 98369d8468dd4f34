"""Make the sites narrower, run the model again, and see that ids flow the same way.

The model's Python code may hold sizes that no tensor shows. So each trace ends with this check:
tracing the narrower model must give what narrowing the trace gives. Where it does not, a number
that some module keeps may have to follow; if none helps, the choice or the site that is to blame
is given up, and the reason kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from obc.errors import ObcError
from obc.running.difference import NothingToCompare, difference
from obc.running.forward import outputs
from obc.running.progress import Patience
from obc.running.snapshot import Snapshot
from obc.tracing.attributes import candidates
from obc.tracing.experts import couple, paths, within
from obc.tracing.flow import Flow, ModuleCall, labelled_dims, user_line
from obc.tracing.halving import Attempt, Failure, Group, partners, sort
from obc.tracing.ledger import Place, Reason, any_between
from obc.tracing.masked import Masked
from obc.tracing.narrow import Units, attribute, narrow, take
from obc.tracing.reads import Reads, recorded
from obc.tracing.repeats import attribute_kinds, pass_by, repeats
from obc.tracing.sites import Site, Sites
from obc.tracing.solve import Classes, base_classes

Positions = dict[tuple[str, int], Tensor]
Run = Callable[[Flow], Any]
How = Callable[[Tensor, dict[int, Tensor]], Tensor]
Check = Callable[[Flow, Positions, list[Tensor]], Failure | None]


class Trial:
    """Tries sites of one trace: the model, how to run it, and how ids flowed at full width."""

    def __init__(
        self,
        model: nn.Module,
        before: Snapshot,
        flow: Flow,
        base: Tensor,
        run: Run,
    ) -> None:
        self.model, self.before, self.flow, self.base, self.run = model, before, flow, base, run
        self.shapes = [t.shape for t in flow.whole]  # which never shrink
        self.other_ops = False  # whether some run took other steps than the first
        self._patience = Patience()
        self._leaves = {leaf.name: leaf for leaf in flow.leaves.values()}
        self._tried: dict[frozenset[Any], Failure | None] = {}
        self._learned: dict[Any, tuple[str, ...]] = {}  # attributes of sites in earlier rounds

    def failures(self, sites: Sites, classes: Classes) -> tuple[Sites, list[tuple[Group, Failure]]]:
        """The sites with the attributes that follow them, and those that cannot be narrowed."""
        self.classes = classes
        self._tried.clear()
        fine = [replace(s, attributes=self._learned.get(_key(s), s.attributes)) for s in sites]
        failures: list[tuple[Group, Failure]] = []
        for check in (self.attempt, self._attempt_one)[: 1 + self._cut_beside_fixed()]:
            if not failures and check(fine) is not None:
                mend = partial(self._with_attributes, check)
                paths = [call.path for call in self._repeats]
                fine, bad = sort(alike(self.model, fine), check, mend, paths)
                failures += self._reconciled(fine, bad, check)
        self._learned.update({_key(s): s.attributes for s in fine if s.attributes})
        return sites.with_attributes({s.name: s.attributes for s in fine}), failures

    def _reconciled(
        self, fine: list[Site], failures: list[tuple[Group, Failure]], check: Attempt
    ) -> list[tuple[Group, Failure]]:
        """Add what passes together though it fails alone: widths that have to be equal."""
        for groups, _ in partners([group for group, _ in failures]):
            there = [any(group is other for other, _ in failures) for group in groups]
            joined = [site for group in groups for site in group]
            if all(there) and check([*fine, *joined]) is None:
                fine += joined
                failures = [f for f in failures if not any(f[0] is group for group in groups)]
        return failures

    def attempt(self, sites: list[Site]) -> Failure | None:
        """Narrow these sites; None when all went as the trace says."""
        wide = [s for s in sites if s.size > 2]
        tight = [s for s in sites if s.size == 2]
        failure = self._once(_thinned(wide), wide, self._compare, hollow) if wide else None
        # Where a single channel is left, ids show no more what goes with it; numbers do.
        if failure is None and tight:
            failure = self._once(_thinned(tight), tight, self._compute, full)
        return failure

    def _attempt_one(self, sites: list[Site]) -> Failure | None:
        """The same, and leave a single channel of each."""
        one = {s.name: list(range(s.picked)) or [s.size // 2] for s in sites}
        return self.attempt(sites) or (
            self._once(one, sites, self._compute, full) if sites else None
        )

    def _cut_beside_fixed(self) -> bool:
        """Whether channels that stay keep some cut in its place, or seem to.

        A cut at a fixed position and one in the middle look alike until most channels are gone:
        seven channels are halved as four and three, just as eight are cut after the fourth.
        """
        for i, choice in enumerate(self.flow.ledger.choices):
            taken = choice.options[self.classes.taken[i] :][:1]
            if choice.cut and any(o.freeze or not o.ties for o in taken):
                return True
        return False

    def _once(
        self, units: dict[str, list[int]], sites: list[Site], compare: Check, how: How
    ) -> Failure | None:
        """The same sites, as narrow and with the same attributes, are tried once."""
        key = frozenset((s.name, s.attributes, len(units[s.name])) for s in sites)
        if key not in self._tried:
            self._tried[key] = self._attempt(units, sites, compare, how)
        return self._tried[key]

    def _attempt(
        self, units: dict[str, list[int]], sites: list[Site], compare: Check, how: How
    ) -> Failure | None:
        self._patience.say(f"obc.trace: trying which of {len(sites)} sites can be narrowed ...")
        self.gone = self.gone_ids(sites, units)
        kept = self.kept(self.gone)
        again = Flow(self.model, self.flow.find)
        passed = self._repeats if compare == self._compare else []
        try:
            narrow(self.model, sites, units, how, kept)
            pass_by(self.model, passed)
            again = Flow(self.model, self.flow.find)
            results = outputs(self.run(again))
            for listed in self.flow.ledger.lists:
                couple(again, self.model, listed)
        except Exception as error:
            self.other_ops |= again.ops != self._ops_without(passed)[: len(again.ops)]
            return self.failure(error, (again.steps or self.flow.steps)[-1].place)
        finally:
            self.before.restore()
        self.other_ops |= again.ops != self._ops_without(passed)
        if [t.shape for t in results] != self.shapes:
            place = self.met(self.gone.nonzero().reshape(-1))
            return Failure(place, "puts out other shapes when narrower")
        return compare(again, kept, results)

    def _ops_without(self, calls: list[ModuleCall]) -> list[tuple[str, ...]]:
        edges = [0, *(edge for c in calls for edge in (c.begin, c.end)), len(self.flow.ops)]
        parts = zip(edges[::2], edges[1::2], strict=True)
        return [op for begin, end in parts for op in self.flow.ops[begin:end]]

    def failure(self, error: Exception, last: Place) -> Failure:
        """What an error says; it came through the user's code, or else from the last operator."""
        text = f"fails when narrower: {(str(error).strip() or repr(error)).splitlines()[0]}"
        return Failure(_where(error, self.model, last), text)

    def gone_ids(self, sites: list[Site], units: Units) -> Tensor:
        """A flag for every id: whether it goes when these channels of these sites are kept."""
        gone = torch.zeros(self.flow.ledger.size, dtype=torch.bool)
        for site in sites:
            mask = torch.ones(site.size, dtype=torch.bool)
            mask[torch.as_tensor(units[site.name])] = False
            gone[self.classes.of[self.ids(site)[mask]]] = True
        return gone.index_select(0, self.classes.of)

    def kept(self, gone: Tensor) -> Positions:
        """Positions that are left, read off the ids: all members of all sites at once."""
        dims = labelled_dims(self.flow.leaves.values())
        starts, sizes = [start for *_, start in dims], [ids.numel() for _, _, ids, _ in dims]
        left: dict[int, Tensor] = {}  # dimensions that are tied as wholes share theirs
        positions: Positions = {}
        cuts = any_between(gone, starts, sizes)
        for (leaf, dim, _, start), size, cut in zip(dims, sizes, cuts, strict=True):
            if cut:
                first = self.flow.ledger.first(start)
                if first not in left:
                    left[first] = (~gone[start : start + size]).nonzero().reshape(-1)
                positions[leaf.name, dim] = left[first]
        return positions

    def ids(self, site: Site) -> Tensor:
        """One id of each channel of a site."""
        member = site.members[0]
        name, dim = member.places[0]
        ids = self._leaves[name].dims[dim]
        assert ids is not None
        return ids[member.index[:, 0]]

    def _compute(self, again: Flow, kept: Positions, results: list[Tensor]) -> Failure | None:
        """The narrower model must put out what the masked one does."""
        masked = Masked(self.model, self.flow, self.gone)
        try:
            difference(outputs(self.run(masked)), results)
        except NothingToCompare:
            return None
        except ObcError as error:
            return Failure(self.met(self.gone.nonzero().reshape(-1)), str(error))
        finally:
            self.before.restore()
        return None

    def _compare(self, again: Flow, kept: Positions, results: list[Tensor]) -> Failure | None:
        """Both runs must tie the same positions of the same parameters."""
        other = base_classes(again.ledger)
        theirs = {leaf.name: leaf for leaf in again.leaves.values()}
        ours_ids, their_ids = [], []
        for leaf in self.flow.leaves.values():
            twin = theirs.get(leaf.name)
            if twin is None:
                continue
            for dim, (mine, yours) in enumerate(zip(leaf.dims, twin.dims, strict=True)):
                if mine is not None and yours is not None:
                    index = kept.get((leaf.name, dim))
                    ours_ids.append(mine if index is None else mine[index])
                    their_ids.append(yours)
        ids = torch.cat(ours_ids)
        ours, yours = self.base[ids], other[torch.cat(their_ids)]
        bad = _finer(ours, yours) | _finer(yours, ours)
        if not bad.any():
            return None
        return Failure(self.met(ids[bad]), "couples other channels when narrower")

    def met(self, ids: Tensor) -> Place:
        """The first place where one of these ids was met."""
        reached = torch.zeros(self.flow.ledger.size, dtype=torch.bool)
        reached[ids] = True
        steps = self.flow.steps
        met = (s.place for s in steps if any(bool(reached[i[i >= 0]].any()) for i in s.ids))
        return next(met, steps[0].place)

    def give_up(self, group: Group, failure: Failure) -> list[tuple[Tensor, Reason]]:
        """Rule out the option a failure speaks against; where none is left, freeze the sites."""
        classes, choices = self.classes, self.flow.ledger.choices
        ids = torch.cat([self.ids(site) for site in group])
        mine = torch.zeros_like(classes.why, dtype=torch.bool)
        mine[classes.of[ids]] = True
        live = [
            i
            for i, choice in enumerate(choices)
            if classes.taken[i] < len(choice.options) and bool(mine[classes.of[choice.ids]].any())
        ]
        lines = {choices[i].place.line: None for i in live}
        line = failure.place.line if failure.place.line in lines else next(iter(lines), None)
        reason = Reason(failure.text, failure.place)
        for i in live:
            if choices[i].place.line == line:
                choices[i].ruled_out.add(classes.taken[i])
                choices[i].reason = reason
        return [] if live else [(ids, reason)]

    def _with_attributes(
        self, check: Attempt, fine: list[Site], group: Group, failure: Failure
    ) -> Group | None:
        """The group with numbers of the failing module, or of one around it, that follow it."""
        parts = failure.place.module.split(".") if failure.place.module else []
        tried: set[tuple[str, ...]] = {()}
        for path in (".".join(parts[:i]) for i in range(len(parts), -1, -1)):
            kind = type(self.model.get_submodule(path))
            for names in candidates(self.model, group, kind):
                # Numbers that nothing reads change nothing.
                matter = tuple(n for site in names for n in site if self._reads(n))
                if not all(names) or matter in tried:
                    continue
                tried.add(matter)
                patched = [replace(s, attributes=n) for s, n in zip(group, names, strict=True)]
                if check([*fine, *patched]) is None:
                    return patched
        return None

    def _reads(self, name: str) -> bool:
        """Whether the model reads this attribute as it runs."""
        owner, key = attribute(self.model, name)
        return (owner, key.partition("[")[0]) in self._read

    @cached_property
    def _repeats(self) -> list[ModuleCall]:
        lists = self.flow.ledger.lists
        experts = {path for listed in lists for path in paths(listed.layer, listed.keys)}
        calls = repeats(self.flow, self.base, self.model)
        return [c for c in calls if not within(f"{c.path}.", experts)]  # these may move or go

    @cached_property
    def _read(self) -> Reads:
        try:
            with recorded(self.model) as reads:
                self.run(Flow(self.model, self.flow.find))
        finally:
            self.before.restore()
        return reads


def _key(site: Site) -> Any:
    return site.name, site.size, tuple((m.name, m.dim, m.index.shape) for m in site.members)


def alike(model: nn.Module, sites: Iterable[Site]) -> list[Group]:
    """Layers repeat: sites of like modules whose names differ in numbers only, as one group."""
    groups: dict[Any, Group] = {}
    for site in sites:
        around = site.members[0].layer.rpartition(".")[0]
        kinds = attribute_kinds(model.get_submodule(around)) if around else ()
        groups.setdefault((re.sub(r"\d+", "*", site.name), kinds), []).append(site)
    return list(groups.values())


def _thinned(sites: list[Site]) -> dict[str, list[int]]:
    """Seven channels stay, at even distances, and of fewer than ten two thirds.

    One channel less can pass where two do not, and few channels are soon looked through; seven,
    since sizes that code holds seldom divide by it.
    """
    return {s.name: _few(s.size, s.picked) for s in sites}


def _few(size: int, least: int) -> list[int]:
    """
    >>> _few(8, 0), _few(8, 6), _few(15, 2)
    ([0, 2, 3, 5, 6], [0, 1, 2, 3, 4, 5], [0, 2, 4, 7, 9, 11, 14])
    """
    if size < 10:
        two_thirds = [c for c in range(size) if c % 3 != 1]
        return two_thirds if len(two_thirds) >= least else list(range(least))
    count = max(7, least)
    return [c * (size - 1) // (count - 1) for c in range(count)]


def full(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """A cut tensor with its values."""
    part = take(tensor, kept)
    return nn.Parameter(part, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else part


def hollow(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """A cut tensor that takes no memory; buffers keep their values, for code may read them.

    So do the matrices of experts, for their kernels insist on strides.
    """
    if not isinstance(tensor, nn.Parameter):
        return take(tensor, kept)
    if tensor.ndim == 3:
        return nn.Parameter(take(tensor, kept), tensor.requires_grad)
    shape = [len(kept[d]) if d in kept else n for d, n in enumerate(tensor.shape)]
    return nn.Parameter(tensor.detach().new_full((), 0.01).expand(shape), tensor.requires_grad)


def _finer(a: Tensor, b: Tensor) -> Tensor:
    """Where one class of `a` meets several of `b`."""
    size = int(a.max()) + 1
    low = torch.full((size,), int(b.max()) + 1).scatter_reduce_(0, a, b, "amin")
    high = torch.full((size,), -1).scatter_reduce_(0, a, b, "amax")
    return (low != high)[a]


def _where(error: BaseException, model: nn.Module, last: Place) -> Place:
    """The innermost module and line of the user's code that an error came through."""
    paths = {id(m): n for n, m in model.named_modules()}
    place, frames = last, error.__traceback__
    while frames is not None:
        owner = frames.tb_frame.f_locals.get("self")
        if id(owner) in paths:
            place = place._replace(module=paths[id(owner)])
        line = user_line(frames.tb_frame, frames.tb_lineno)
        if line:
            place = place._replace(op="", line=line)
        frames = frames.tb_next
    return place
