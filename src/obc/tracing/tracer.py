"""`obc.trace`: which channels of a model belong together. Reads only."""

from __future__ import annotations

import fnmatch
import gc
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from obc.errors import ObcError, closest
from obc.running.caches import cold
from obc.running.checks import check_flag, names
from obc.running.forward import forward, outputs
from obc.running.modules import named_tensors
from obc.running.offload import at_hand
from obc.running.snapshot import Snapshot
from obc.tracing.arguments import tensors_in
from obc.tracing.decisions import Decisions
from obc.tracing.experts import follow, scattered
from obc.tracing.flow import NOWHERE, Flow
from obc.tracing.ledger import Pairs, Reason
from obc.tracing.rehearsal import Rehearsal
from obc.tracing.rules.registry import find
from obc.tracing.sites import Sites, build, place_of
from obc.tracing.solve import Classes, base_classes, components, solve
from obc.tracing.trial import Trial
from obc.tracing.unreached import held


@at_hand
def trace(
    model: nn.Module, example: Any, *, ignore: str | Sequence[str] = (), heads: bool = True
) -> Sites:
    """Find the sites of a model by running it once on a small example.

    `example` is a tensor, a tuple of arguments or a dict of keyword arguments. Layers named in
    `ignore` (names or patterns such as "layer4.*") keep their output channels; `heads=False`
    leaves attention heads alone. The model is as it was afterwards.

    >>> import torch
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    >>> sites = trace(net, torch.zeros(1, 3, 8, 8))
    >>> [(s.name, s.size) for s in sites]
    [('0', 8)]
    >>> for m in sites["0"].members:
    ...     print(m.name, m.dim, m.role)
    0.weight 0 out
    0.bias 0 out
    1.weight 0 norm
    1.bias 0 norm
    3.weight 1 in
    >>> print(sites.frozen[0])
    3 (4 channels): model output (the model)
    """
    check_flag("heads", heads)
    return Tracing(model, example, names("ignore", ignore, "a layer"), heads).sites


class Tracing:
    """A trace with everything behind its sites: the flow of ids and their classes."""

    sites: Sites
    classes: Classes

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        ignore: Sequence[str] = (),
        heads: bool = True,
        rehearse: bool = True,
    ) -> None:
        """`rehearse=False` is for those who prove a cut of their own."""
        self.model, self.example = model, example
        self._rehearse, self._trains = rehearse, False
        # So many small objects come and go that Python would search for cycles again and again.
        collecting = gc.isenabled()
        gc.disable()
        try:
            with cold(model, example) as before:  # what caches hold has to be traced as well
                self._trace(before, ignore, heads)
        finally:
            if collecting:
                gc.enable()

    def _trace(
        self, before: Snapshot, ignore: Sequence[str], heads: bool, again: bool = False
    ) -> None:
        model = self.model
        self.flow = Flow(model, find)
        try:
            with Decisions(self.flow) as decisions:
                # Detached, for what is known of a tensor in flight, written on it, holds the flow.
                self.flow.whole = [t.detach() for t in outputs(self.run(self.flow))]
        except ObcError:
            raise
        except Exception as error:
            self._check_example()
            said = (str(error).strip() or repr(error)).splitlines()[0]
            raise ObcError(
                f"the model runs on the example, but not under a trace: {said}"
            ) from error
        before.restore()
        follow(self.flow, model)
        untouched = self._untouched()
        if untouched:
            self._follow_training(before)
            follow(self.flow, model)
            untouched = self._untouched()
        ledger = self.flow.ledger
        ledger.settle_cuts()
        ledger.settle_picks()
        base = base_classes(ledger)
        stay = list(held(model, self.flow, untouched))
        asked = _ignored(self.flow, model, ignore)
        if not heads:
            asked += [(i, _reason("heads=False")) for i in ledger.roles["head"]]
        trial = Trial(model, before, self.flow, base, self._run_all)
        rehearsal = None
        if self._rehearse:
            rehearsal = Rehearsal(trial, self.example, self._trains, tuple(decisions.numbers))
        names, steady = None, False
        while True:
            self.classes = solve(ledger, base, stay)
            if apart := scattered(ledger.lists, self.classes):
                stay += apart
                self.classes = solve(ledger, base, stay)
            self.sites = build(self.flow, self.classes, model, untouched, self.example, names)
            if not asked and rehearsal is not None and not ledger.choices:
                # No size in the code shaped anything: where values prove the cut, they prove all.
                trial.classes = self.classes
                if rehearsal.proves(list(self.sites)):
                    return
            self.sites, bad = trial.failures(self.sites, self.classes)
            if (trial.other_ops or not self.sites) and not steady:
                steady = True
                if not self._steady(before):
                    if again:
                        raise ObcError(_UNSTEADY)
                    return self._trace(before, ignore, heads, again=True)
            ties: list[Pairs] = []
            if not bad and rehearsal is not None and names is None:
                bad, ties = rehearsal.failures(list(self.sites))
                base = components(base, ties)
            for group, failure in bad:
                stay += trial.give_up(group, failure)
            if not bad and not ties and not asked:
                return
            if not bad and not ties:
                # Once more with what the user wants to stay. Sites keep the names that they have
                # without, since a plan is applied by them, and `apply` knows of no such wish.
                names = {place_of(site): site.name for site in self.sites}
                stay, asked = [*stay, *asked], []

    def _check_example(self) -> None:
        """Tell an example that the model rejects from an error of ours."""
        try:
            forward(self.model, self.example)
        except Exception as error:
            if "does not require grad" in str(error):
                raise ObcError(
                    "the model takes gradients as it runs, and obc runs it without; put them in "
                    "its forward under torch.enable_grad()"
                ) from error
            raise ObcError(f"the model rejects the example: {error}") from error

    def _steady(self, before: Snapshot) -> bool:
        """Whether the recorded run is what a run does; an error if each run does something else.

        The first run may fill caches: then the second and third must be alike, and reach nothing
        that the first does not.
        """
        runs: list[Any] = []
        while len(runs) < 2 or (len(runs) == 2 and runs[0] != runs[1]):
            watch = _Operators(self.model)
            forward(self.model, self.example, run=watch.run)
            runs.append(watch.ops)
        before.restore()
        first, later = ({name for _, *used in ops for name in used} for ops in runs[:2])
        if runs[1] != runs[-1] or not later <= first:
            raise ObcError(_UNSTEADY)
        return bool(self.flow.ops == runs[0])

    def run(self, flow: Flow) -> Any:
        """Run the model on the example under a flow."""
        return flow.through(self.model, self.example)

    def _follow_training(self, before: Snapshot) -> None:
        """What eval mode leaves out, such as an auxiliary head, may run in train mode."""
        known = len(self.flow.leaves)
        try:
            self.flow.through_training(self.model, self.example)
        except Exception:  # it wants targets, say: then nothing is known of train mode
            return
        finally:
            before.restore()
        self._trains = len(self.flow.leaves) > known

    def _run_all(self, flow: Flow) -> Any:
        """Run the model in eval mode, and in train mode where that reaches more."""
        output = self.run(flow)
        if self._trains:
            flow.through_training(self.model, self.example)
        return output

    def ids(self, name: str) -> Tensor:
        """Ids of a site's channels, at the positions that each owns in one of its layers."""
        member = self.sites[name].members[0]
        name, dim = member.places[0]
        ids = next(leaf for leaf in self.flow.leaves.values() if leaf.name == name).dims[dim]
        assert ids is not None
        return ids[member.index]

    def _untouched(self) -> list[str]:
        seen = {leaf.name for leaf in self.flow.leaves.values()}
        tensors = named_tensors(self.model)
        return [n for n, t in tensors.items() if isinstance(t, nn.Parameter) and n not in seen]


def _reason(text: str) -> Reason:
    return Reason(text, NOWHERE)


def _ignored(flow: Flow, model: nn.Module, patterns: Sequence[str]) -> list[tuple[Tensor, Reason]]:
    """Ids of what the named layers put out or scale; what they read may still shrink."""
    if not patterns:
        return []
    names = [n for n, _ in model.named_modules() if n]
    reads = flow.ledger.marked("in") & ~flow.ledger.marked("out")
    ignored = []
    for pattern in patterns:
        hits = {n for n in names if fnmatch.fnmatchcase(n, pattern)}
        if not hits:
            raise ObcError(
                f"ignore: no layer named '{pattern}'{closest(pattern, names)}", section="names"
            )
        for leaf in flow.leaves.values():
            if any(leaf.name.startswith(f"{h}.") for h in hits):
                own = [ids[~reads[ids]] for ids in leaf.dims if ids is not None]
                ignored += [(ids, _reason(f"ignored by '{pattern}'")) for ids in own]
    return ignored


_UNSTEADY = "the model changes its graph from call to call; it cannot be traced"


class _Operators:
    """Operators that run and parameters they use, to see whether another run is the same."""

    def __init__(self, model: nn.Module) -> None:
        self.ops: list[tuple[str, ...]] = []
        self._names = {id(t): n for n, t in named_tensors(model).items()}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        used = (self._names.get(id(t)) for t in tensors_in((*args, *kwargs.values())))
        self.ops.append((func._schema.name, *(n for n in used if n)))
        return func(*args, **kwargs)
