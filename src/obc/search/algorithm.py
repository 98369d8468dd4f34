"""One run of Algorithm 1: its state, its steps, and the plans it ends with."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from obc.costs import latency
from obc.costs.cost_model import costs_of
from obc.costs.counting import cost
from obc.costs.targets import Target
from obc.criteria.reduce import AGGREGATORS, NORMALIZERS
from obc.criteria.score import Loss, Scorer
from obc.disk import digest
from obc.errors import ObcError
from obc.plans.plan import Plan, PlanStep, SitePlan
from obc.search import resume as checkpoint
from obc.search.carry import Carried
from obc.search.feasibility import Reach
from obc.search.history import by_site, gone_by, notes
from obc.search.landing import land
from obc.search.progress import Progress
from obc.search.ranking import Chunk, allowed_counts, check_scores, chunks_of, kinds, ranked
from obc.search.settings import Settings
from obc.search.stream import Stream
from obc.search.working import Working
from obc.tracing.sites import Sites
from obc.tracing.tracer import Tracing


class Run:
    """A model, its sites and costs, and a working copy that shrinks towards the targets."""

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        batches: Iterable[Any],
        loss: Loss | None,
        targets: Sequence[Target],
        settings: Settings,
        resume: str | os.PathLike[str] | None,
    ) -> None:
        self.model, self.example, self.settings = model, example, settings
        self.targets, self.loss, self.folder = list(targets), loss, resume
        self.criterion = copy.deepcopy(settings.make_criterion())
        if self.criterion.evidence != "none" and loss is None:
            raise ObcError(
                "this criterion needs batches and a loss: plan(model, example, batches, loss, ...)"
            )
        tracing = Tracing(model, example)
        self.sites: Sites = tracing.sites
        if not len(self.sites):
            raise ObcError("nothing can be pruned: every channel is frozen; see trace(...).frozen")
        floors = settings.floors(self.sites, model)
        levels = [
            allowed_counts(s, f, settings.round_to) for s, f in zip(self.sites, floors, strict=True)
        ]
        self.kinds = kinds(self.sites, model)
        self.stream = Stream(batches, settings.seed)
        unit = targets[0].unit
        self.work = Working(model, self.sites, as_it_is=unit == "latency")
        self.scorer = Scorer(self.work.model, self.sites, loss, self.criterion)
        self.progress = Progress(self.scorer.group)
        self.described = settings.described()
        self.state = self._state(unit)
        if unit == "latency" and self.state.seconds is None:
            self.state.seconds = latency.seconds(model, example)
        self.reach = Reach(
            model, example, self.sites, levels, costs_of(tracing), unit, self.state.seconds
        )
        self.scored: dict[str, tuple[Tensor, Tensor]] = {}  # channels and scores, the last time
        self.every = sum(own[0] for own in levels if len(own) > 1)  # channels that may go
        carry = settings.carry if self.criterion.evidence != "none" else 0.0
        self.carried = Carried(carry, settings.rows)
        self.start = [list(range(s.size)) for s in self.sites]  # kept at the last landing
        self.since: list[Chunk] = []  # removed after it
        if self.state.history:
            self._go_on()

    # -- what outlives the process ---------------------------------------------------------

    def _state(self, unit: str) -> checkpoint.State:
        run = {**self.described, "targets": ", ".join(map(str, self.targets))}
        if self.folder is None:
            return checkpoint.State(run=run)
        run["model"] = digest.of_model(self.model)
        run["processes"] = self.scorer.group.count
        found = checkpoint.read(self.folder, run)
        # Without batches steps take no time; going through all of them draws the same numbers.
        instant = self.criterion.evidence == "none" and unit != "latency"
        return checkpoint.State(run=run) if instant else found

    def _go_on(self) -> None:
        """Make the working copy, the evidence and the batches what they were."""
        state = self.state
        gone = gone_by(state.history)
        self.work.remove({n: list(own) for n, own in gone.items()})
        self.scorer.follow(self.work.sites)
        self.scorer.recall(state.findings)
        self.carried.rows, self.carried.weight = state.rows, state.weight
        self.carried.sums = {
            n: torch.tensor(v, dtype=torch.float64) for n, v in state.evidence.items()
        }
        self.since = [Chunk(s, tuple(c), tuple(v)) for s, c, v in state.since]
        later = {(c.site, i) for c in self.since for i in c.channels}
        self.start = [
            [i for i in range(s.size) if i not in gone.get(s.name, {}) or (number, i) in later]
            for number, s in enumerate(self.sites)
        ]
        self.stream.skip_to(*state.batches)

    def _save(self) -> None:
        state = self.state
        state.since = [(c.site, list(c.channels), list(c.scores)) for c in self.since]
        state.batches = (self.stream.round, self.stream.offset)
        state.findings = self.scorer.findings()
        state.rows, state.weight = self.carried.rows, self.carried.weight
        state.evidence = {n: v.tolist() for n, v in self.carried.sums.items()}
        if self.folder is not None and self.scorer.group.rank == 0:
            checkpoint.write(self.folder, state)

    # -- the steps -------------------------------------------------------------------------

    def go(self) -> list[Plan]:
        """Reach one target after the other, the loosest first; plans in the order asked for."""
        limits = [self.reach.limit(t) for t in self.targets]
        order = sorted(range(len(limits)), key=lambda i: -limits[i])
        possible = self.reach.feasible([self.targets[i] for i in order])
        with self.progress.shown():
            for number, i in enumerate(order):
                if number >= len(self.state.landed):
                    self._reach(self.targets[i], possible[number], limits[order[-1]])
        plans = dict(zip(order, self.state.landed, strict=True))
        return [plans[i] for i in range(len(order))]

    def _reach(self, target: Target, possible: Sequence[int], last: float) -> None:
        """Algorithm 1 for one target, from where the one before ended."""
        limit = self.reach.limit(target)
        while self._now() > limit:
            chunks = self._ranking()
            if not chunks:
                raise ObcError(
                    f"{target} cannot be met: what is left is at its floor or has infinite "
                    f"scores; reached {target.like(self.reach.whole, self._now())}"
                )
            some = self._portion(chunks)
            if self.reach.in_time:
                self._step_in_time(some, limit)
            elif self.reach.value(self._without(some)) <= limit:
                self._land(target, chunks, possible)
            else:
                self._remove(some)
            now = self._now()
            if now > limit:  # what has landed is written together with its plan
                self._save()
            done = (self.reach.whole - now) / max(self.reach.whole - last, 1e-300)
            history = self.state.history
            self.progress.update(len(history), history[-1].after, done)
        self._check_cost()
        self.state.landed.append(self._plan(target))
        self.start = [self.work.kept[s.name].tolist() for s in self.sites]
        self.since = []
        self._save()

    def _counts(self) -> list[int]:
        return [len(self.work.kept[s.name]) for s in self.sites]

    def _now(self) -> float:
        if not self.reach.in_time:
            return self.reach.value(self._counts())
        history = self.state.history
        seconds = history[-1].after.seconds if history else self.state.seconds
        assert seconds is not None
        return seconds

    def _portion(self, chunks: Sequence[Chunk]) -> list[Chunk]:
        """What goes in one step: p G channels, rounded up to whole chunks."""
        count = max(1, round(self.settings.step * self.every))
        some, total = [], 0
        for chunk in chunks:
            some.append(chunk)
            total += len(chunk.channels)
            if total >= count:
                break
        return some

    def _without(self, chunks: Sequence[Chunk]) -> list[int]:
        counts = self._counts()
        for chunk in chunks:
            counts[chunk.site] -= len(chunk.channels)
        return counts

    def _ranking(self) -> list[Chunk]:
        """Score the working copy; its channels, the first to go first."""
        scores = self._score()
        check_scores(scores)
        self.scored = {n: (self.work.kept[n], own) for n, own in scores.items()}
        chunks = [
            chunks_of(i, self.work.kept[s.name].tolist(), scores[s.name], self.reach.levels[i])
            for i, s in enumerate(self.sites)
        ]
        counts, savings = self._counts(), None
        if self.settings.rank == "score/cost":
            portions = [len(own[0].channels) if own else 0 for own in chunks]
            savings = self.reach.savings(counts, portions)
        sizes = [s.size for s in self.sites]
        return ranked(chunks, self.settings.scope, self.kinds, sizes, counts, savings)

    def _score(self) -> dict[str, Tensor]:
        """Scores from fresh rows, and from the evidence that is carried along."""
        before = self.stream.drawn
        totals = self.scorer.totals(self.stream.take(self.carried.fresh))
        aggregate = AGGREGATORS[self.settings.aggregate]
        found = {n: aggregate(t).cpu().double() for n, t in totals.items()}
        found = self.carried.joined(found, self.stream.drawn - before)
        return {n: NORMALIZERS[self.settings.normalize](own) for n, own in found.items()}

    def _remove(
        self,
        chunks: Sequence[Chunk],
        seconds: float | None = None,
        restored: dict[str, list[int]] | None = None,
    ) -> None:
        """Cut the working copy, and let its sites, the evidence and the history follow."""
        gone = by_site(chunks, self.sites)
        removed = {n: [channel for channel, _ in own] for n, own in gone.items()}
        places = self.work.remove(removed)
        self.scorer.follow(self.work.sites)
        self.carried.follow(places, sum(map(len, removed.values())) / self.every)
        self.state.history.append(
            PlanStep(
                removed=removed,
                scores={n: [score for _, score in own] for n, own in gone.items()},
                restored=restored or {},
                after=self.reach.cost(self._counts(), seconds),
            )
        )
        self.since += chunks

    # -- the last step of a target ---------------------------------------------------------

    def _land(self, target: Target, chunks: Sequence[Chunk], possible: Sequence[int]) -> None:
        """Remove as many channels of each site as meet the target exactly."""
        every = [*self.since, *chunks]
        own = [[c for c in every if c.site == i] for i in range(len(self.sites))]
        levels = []
        for kept, chunked in zip(self.start, own, strict=True):
            counts = [len(kept)]
            for chunk in chunked:
                counts.append(counts[-1] - len(chunk.channels))
            levels.append(counts)
        done, ranking = [c.site for c in self.since], [c.site for c in chunks]
        landing = land(self.reach.price, levels, done, ranking, self.reach.limit(target))
        places = list(landing.places)
        if not landing.met:
            if not all(n in counts for n, counts in zip(possible, levels, strict=True)):
                self.reach.refuse(target, landing.value)
            places = [counts.index(n) for n, counts in zip(possible, levels, strict=True)]
        wanted = [c for i, place in enumerate(places) for c in own[i][:place]]
        before, after = set(self.since), set(wanted)
        back = by_site([c for c in self.since if c not in after], self.sites)
        restored = {n: sorted(channel for channel, _ in own) for n, own in back.items()}
        if restored:
            self._restore(restored)
        self._remove([c for c in wanted if c not in before], restored=restored)

    def _restore(self, back: dict[str, list[int]]) -> None:
        """Make the working copy anew with channels that had gone; carried evidence is lost."""
        gone = gone_by(self.state.history)
        findings = self.scorer.findings()
        self.work = Working(self.model, self.sites)
        self.work.remove(
            {n: [i for i in own if i not in back.get(n, ())] for n, own in gone.items()}
        )
        self.scorer = Scorer(self.work.model, self.work.sites, self.loss, self.criterion)
        self.scorer.recall(findings)
        self.carried.forget()

    def _step_in_time(self, some: Sequence[Chunk], limit: float) -> None:
        """Remove a step's channels, or the fewest of them that meet the limit, and measure."""
        low, high = 1, len(some)
        best = self._time(some)
        while best <= limit and low < high:
            middle = (low + high) // 2
            found = self._time(some[:middle])
            if found <= limit:
                high, best = middle, found
            else:
                low = middle + 1
        self._remove(some[:high], best)

    def _time(self, chunks: Sequence[Chunk]) -> float:
        trial = copy.copy(self.work)
        trial.model, trial.kept = copy.deepcopy(self.work.model), dict(self.work.kept)
        gone = by_site(chunks, self.sites)
        trial.remove({n: [channel for channel, _ in own] for n, own in gone.items()})
        return latency.seconds(trial.model, self.example)

    # -- the plan --------------------------------------------------------------------------

    def _check_cost(self) -> None:
        """What the plan says it costs must be what the cut copy costs."""
        found, said = cost(self.work.model, self.example), self.reach.cost(self._counts())
        if (found.macs, found.params) != (said.macs, said.params):
            raise ObcError(
                f"the cut model costs {found.macs} MACs and {found.params} parameters, "
                f"not {said.macs} and {said.params} as expected; please report this model"
            )

    def _plan(self, target: Target) -> Plan:
        kept = {s.name: self.work.kept[s.name].tolist() for s in self.sites}
        changed = {s.name: kept[s.name] for s in self.sites if len(kept[s.name]) < s.size}
        base = Plan.from_kept(self.sites, changed)
        gone = gone_by(self.state.history)
        parts = {
            s.name: SitePlan(
                size=s.size,
                kept=kept[s.name],
                floor=self.reach.levels[i][-1],
                highest_removed=max(gone[s.name].values()),
                lowest_kept=self._lowest(s.name),
            )
            for i, s in enumerate(self.sites)
            if s.name in changed
        }
        history = list(self.state.history)
        return Plan(
            sites=parts,
            shapes=base.shapes,
            example=base.example,
            target=str(target),
            settings=self.described,
            before=self.reach.before,
            after=history[-1].after if history else self.reach.before,
            history=history,
            untouched={s.name: s.size for s in self.sites if s.name not in changed},
            notes=notes(self.reach.before, history),
        )

    def _lowest(self, name: str) -> float | None:
        """The lowest score in the last scoring among the channels that are kept."""
        if name not in self.scored:
            return None
        channels, scores = self.scored[name]
        left = scores[torch.isin(channels, self.work.kept[name])]
        left = left[left.isfinite()]
        return float(left.min()) if len(left) else None
