"""One run of Algorithm 1: its state, its steps, and the plans it ends with."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from obc.criteria.reduce import AGGREGATORS, NORMALIZERS
from obc.criteria.score import Loss, Scorer
from obc.errors import ObcError
from obc.planning import checkpoint, latency
from obc.planning.budget import cost
from obc.planning.costs import Costs, costs_of
from obc.planning.history import by_site, gone_by, notes
from obc.planning.landing import evenly, land
from obc.planning.plan import Plan, PlanCost, PlanStep, SitePlan
from obc.planning.progress import Progress
from obc.planning.ranking import Chunk, allowed_counts, check_scores, chunks_of, kinds, ranked
from obc.planning.settings import Settings
from obc.planning.stream import Stream
from obc.planning.targets import Target
from obc.planning.working import Working
from obc.trace.sites import Sites
from obc.trace.tracer import Tracing


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
        ignore: str | Sequence[str],
        resume: str | os.PathLike[str] | None,
    ) -> None:
        self.model, self.example, self.settings = model, example, settings
        self.targets, self.loss, self.folder = list(targets), loss, resume
        patterns = [ignore] if isinstance(ignore, str) else list(ignore)
        self.criterion = copy.deepcopy(settings.make_criterion())
        if self.criterion.evidence != "none" and loss is None:
            raise ObcError(
                "this criterion needs batches and a loss: plan(model, example, batches, loss, ...)"
            )
        tracing = Tracing(model, example, patterns)
        self.sites: Sites = tracing.sites
        if not len(self.sites):
            raise ObcError("nothing can be pruned: every channel is frozen; see trace(...).frozen")
        floors = settings.floors(self.sites)
        self.levels = [
            allowed_counts(s, f, settings.round_to) for s, f in zip(self.sites, floors, strict=True)
        ]
        self.kinds = kinds(self.sites, model)
        self.costs: Costs = costs_of(tracing)
        self.stream = Stream(batches, settings.seed)
        self.unit = targets[0].unit
        about = {
            **settings.described(),
            "targets": ", ".join(map(str, targets)),
            "ignore": ", ".join(patterns),
        }
        self.described = {**settings.described(), "ignore": ", ".join(patterns)}
        self._begin(about)

    # -- beginning, and beginning again ----------------------------------------------------

    def _begin(self, about: dict[str, str | int | float | bool | None]) -> None:
        self.work = Working(self.model, self.sites)
        self.scorer = Scorer(self.work.model, self.sites, self.loss, self.criterion)
        self.state = checkpoint.State(run=about)
        if self.folder is not None:
            checkpoint.make_folder(self.folder)
            about |= {
                "model": checkpoint.fingerprint(self.model),
                "processes": self.scorer.shares.count,
            }
            found = checkpoint.read(self.folder, about)
            # Without batches a run takes no time and goes through its steps again.
            self.state = checkpoint.State(run=about) if self._is_instant else found
        self.scored: dict[str, tuple[Tensor, Tensor]] = {}  # channels and scores, the last time
        self.evidence: dict[str, Tensor] = {}
        self.start = [list(range(s.size)) for s in self.sites]  # kept at the last landing
        self.since: list[Chunk] = []
        if self.state.history:
            self._go_on()

    @property
    def _is_instant(self) -> bool:
        return self.criterion.evidence == "none" and self.unit != "latency"

    def _go_on(self) -> None:
        """Make the working copy, the evidence and the batches what they were."""
        state = self.state
        gone = gone_by(state.history)
        self.work.remove({n: list(own) for n, own in gone.items()})
        self.scorer.follow(self.work.sites)
        self.scorer.recall(state.findings)
        self.evidence = {n: torch.tensor(v, dtype=torch.float64) for n, v in state.evidence.items()}
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
        state.evidence = {n: v.tolist() for n, v in self.evidence.items()}
        if self.folder is not None and self.scorer.shares.rank == 0:
            checkpoint.write(self.folder, state)

    # -- costs -----------------------------------------------------------------------------

    def _counts(self) -> list[int]:
        return [len(self.work.kept[s.name]) for s in self.sites]

    def _cost(self, counts: Sequence[int], seconds: float | None = None) -> PlanCost:
        row = torch.tensor([list(counts)])
        costs = self.costs
        return PlanCost(
            macs=int(costs.macs(row)),
            params=int(costs.params(row)),
            channels=int(costs.channels(row)),
            seconds=seconds,
        )

    def _value(self, counts: Sequence[int]) -> float:
        return float(self.costs.of(self.unit)(torch.tensor([list(counts)])))

    def _savings(self, chunks: Sequence[Sequence[Chunk]]) -> Tensor:
        """What one channel of each site saves now, of the target's unit; of MACs for time."""
        price = self.costs.of("macs" if self.unit == "latency" else self.unit)
        now = torch.tensor(self._counts())
        less = now.repeat(len(now), 1)
        size = torch.ones(len(now))
        for i, own in enumerate(chunks):
            if own:
                size[i] = len(own[0].channels)
                less[i, i] -= len(own[0].channels)
        return (price(now[None]) - price(less)).double() / size

    # -- the steps -------------------------------------------------------------------------

    def go(self) -> list[Plan]:
        """Reach one target after the other, the loosest first; plans in the order asked for."""
        before = self._cost([s.size for s in self.sites])
        if self.unit == "latency":
            if self.state.seconds is None:
                self.state.seconds = latency.seconds(self.model, self.example)
            before = before.model_copy(update={"seconds": self.state.seconds})
            whole = self.state.seconds
        else:
            whole = float(getattr(before, self.unit))
        self.before = before
        limits = [t.limit(whole) for t in self.targets]
        order = sorted(range(len(limits)), key=lambda i: -limits[i])
        self.last = limits[order[-1]]
        self.whole = whole
        found = self._feasible([self.targets[i] for i in order])
        self.progress = Progress(self.scorer.shares)
        with self.progress.shown():
            for number, i in enumerate(order):
                if number >= len(self.state.landed):
                    self._reach(self.targets[i], limits[i], found[number])
        plans = dict(zip(order, self.state.landed, strict=True))
        return [plans[i] for i in range(len(order))]

    def _feasible(self, targets: Sequence[Target]) -> list[list[int]]:
        """For each target counts that meet it, found before any work, or an error."""
        floor = [own[-1] for own in self.levels]
        if self.unit == "latency":
            smallest = Working(self.model, self.sites)
            smallest.remove(
                {s.name: range(n, s.size) for s, n in zip(self.sites, floor, strict=True)}
            )
            fastest = latency.seconds(smallest.model, self.example)
            for target in targets:
                if fastest > target.limit(self.whole):
                    self._refuse(target, fastest)
            return [floor for _ in targets]
        found, levels = [], self.levels
        for target in targets:
            limit = target.limit(self.whole)
            if self._value(floor) > limit:
                self._refuse(target, self._value(floor))
            landing = land(self.costs.of(self.unit), levels, [], evenly(levels), limit)
            counts = [own[p] for own, p in zip(levels, landing.places, strict=True)]
            if not landing.met:
                self._refuse(target, self._value(counts))
            found.append(counts)
            levels = [own[p:] for own, p in zip(levels, landing.places, strict=True)]
        return found

    def _refuse(self, target: Target, value: float) -> None:
        if value > target.limit(self.whole):
            why = "with every site at its floor there is still more left"
        else:
            why = "channels are too coarse to land within 0.5% of it"
        raise ObcError(
            f"{target} cannot be met: {why}; the nearest that can is "
            f"{target.like(self.whole, value)}"
        )

    def _reach(self, target: Target, limit: float, feasible: list[int]) -> None:
        count = max(1, round(self.settings.step * sum(s.size for s in self.sites)))
        while self._now() > limit:
            chunks = self._ranking()
            if not chunks:
                raise ObcError(
                    f"{target} cannot be met: all channels that are left have infinite scores; "
                    f"reached {target.like(self.whole, self._now())}"
                )
            some, total = [], 0
            for chunk in chunks:
                some.append(chunk)
                total += len(chunk.channels)
                if total >= count:
                    break
            if self.unit == "latency":
                self._step_in_time(some, limit)
            elif self._value(self._less(some)) <= limit:
                self._land(target, limit, chunks, feasible)
            else:
                self._remove(some)
            if self._now() > limit:  # what has landed is written with its plan
                self._save()
            self._tell()
        self._check_cost()
        self.state.landed.append(self._plan(target))
        self.start, self.since = self._kept(), []
        self._save()

    def _now(self) -> float:
        if self.unit != "latency":
            return self._value(self._counts())
        history = self.state.history
        seconds = history[-1].after.seconds if history else self.state.seconds
        assert seconds is not None
        return seconds

    def _tell(self) -> None:
        done = (self.whole - self._now()) / max(self.whole - self.last, 1e-300)
        history = self.state.history
        self.progress.update(len(history), history[-1].after, min(max(done, 0.0), 1.0))

    def _less(self, chunks: Sequence[Chunk]) -> list[int]:
        counts = self._counts()
        for chunk in chunks:
            counts[chunk.site] -= len(chunk.channels)
        return counts

    def _kept(self) -> list[list[int]]:
        return [self.work.kept[s.name].tolist() for s in self.sites]

    def _ranking(self) -> list[Chunk]:
        """Score the working copy; its channels, the first to go first."""
        settings = self.settings
        scores = self._score()
        check_scores(scores)
        self.scored = {n: (self.work.kept[n], own) for n, own in scores.items()}
        chunks = [
            chunks_of(i, self.work.kept[s.name].tolist(), scores[s.name], self.levels[i])
            for i, s in enumerate(self.sites)
        ]
        savings = self._savings(chunks) if settings.rank == "score/cost" else None
        sizes = [s.size for s in self.sites]
        return ranked(chunks, settings.scope, self.kinds, sizes, self._counts(), savings)

    def _score(self) -> dict[str, Tensor]:
        """Scores from fresh rows, and from the evidence that is carried along."""
        settings, state = self.settings, self.state
        fresh = settings.rows
        if self.evidence:
            fresh = max(1, math.ceil(state.rows * (1 - settings.carry) - 1e-9))
        before = self.stream.drawn
        totals = self.scorer.totals(self.stream.take(fresh))
        if not self.evidence:
            state.rows = self.stream.drawn - before
        found = {n: AGGREGATORS[settings.aggregate](t).cpu().double() for n, t in totals.items()}
        if settings.carry and self.criterion.evidence != "none":
            for name, old in self.evidence.items():
                found[name] = found[name] + settings.carry * old
            self.evidence = found
        return {n: NORMALIZERS[settings.normalize](own) for n, own in found.items()}

    def _remove(self, chunks: Sequence[Chunk], seconds: float | None = None) -> None:
        """Cut the working copy, and let sites and evidence follow."""
        gone = by_site(chunks, self.sites)
        scores = {n: [v for _, v in own] for n, own in gone.items()}
        self._cut({n: [i for i, _ in own] for n, own in gone.items()}, scores, seconds=seconds)
        self.since += chunks

    def _cut(
        self,
        gone: dict[str, list[int]],
        scores: dict[str, list[float]],
        restored: dict[str, list[int]] | None = None,
        seconds: float | None = None,
    ) -> None:
        places = self.work.remove(gone)
        self.scorer.follow(self.work.sites)
        for name, left in places.items():
            if name in self.evidence:
                self.evidence[name] = self.evidence[name][left]
        self.state.history.append(
            PlanStep(
                removed=gone,
                scores=scores,
                restored=restored or {},
                after=self._cost(self._counts(), seconds),
            )
        )

    # -- landing ---------------------------------------------------------------------------

    def _land(
        self, target: Target, limit: float, chunks: Sequence[Chunk], feasible: Sequence[int]
    ) -> None:
        """The last step of a target: as many channels of each site as meet it exactly."""
        order = [*self.since, *chunks]
        own: list[list[Chunk]] = [[c for c in order if c.site == i] for i in range(len(self.sites))]
        levels = []
        for i, kept in enumerate(self.start):
            counts = [len(kept)]
            for chunk in own[i]:
                counts.append(counts[-1] - len(chunk.channels))
            levels.append(counts)
        landing = land(
            self.costs.of(self.unit),
            levels,
            [c.site for c in self.since],
            [c.site for c in chunks],
            limit,
        )
        places = list(landing.places)
        if not landing.met:
            if not all(n in counts for n, counts in zip(feasible, levels, strict=True)):
                self._refuse(target, landing.value)
            places = [counts.index(n) for n, counts in zip(feasible, levels, strict=True)]
        wanted = [c for i, p in enumerate(places) for c in own[i][:p]]
        before = {(c.site, i) for c in self.since for i in c.channels}
        after = {(c.site, i) for c in wanted for i in c.channels}
        back: dict[str, list[int]] = {}
        for site, i in sorted(before - after):
            back.setdefault(self.sites[site].name, []).append(i)
        fresh = [c for c in wanted if not before.issuperset((c.site, i) for i in c.channels)]
        if back:
            self._restore(back)
        gone = by_site(fresh, self.sites)
        scores = {n: [v for _, v in pairs] for n, pairs in gone.items()}
        self._cut({n: [i for i, _ in pairs] for n, pairs in gone.items()}, scores, back)

    def _restore(self, back: dict[str, list[int]]) -> None:
        """Make the working copy anew with channels that had gone; their evidence is lost."""
        gone = gone_by(self.state.history)
        findings = self.scorer.findings()
        self.work = Working(self.model, self.sites)
        self.work.remove(
            {n: [i for i in own if i not in back.get(n, ())] for n, own in gone.items()}
        )
        self.scorer = Scorer(self.work.model, self.work.sites, self.loss, self.criterion)
        self.scorer.recall(findings)
        self.evidence = {}

    def _step_in_time(self, some: Sequence[Chunk], limit: float) -> None:
        """Remove a step's channels, or the fewest of them that meet the limit, and measure."""
        low, high = 1, len(some)
        best = self._time(some)
        if best <= limit:
            while low < high:
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
        trial.remove({n: [i for i, _ in own] for n, own in gone.items()})
        return latency.seconds(trial.model, self.example)

    # -- the plan --------------------------------------------------------------------------

    def _check_cost(self) -> None:
        """What the plan says it costs must be what the cut copy costs."""
        found, said = cost(self.work.model, self.example), self._cost(self._counts())
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
                floor=self.levels[i][-1],
                highest_removed=max(gone[s.name].values(), default=None),
                lowest_kept=self._lowest(s.name),
            )
            for i, s in enumerate(self.sites)
            if s.name in changed
        }
        history = list(self.state.history)
        after = history[-1].after if history else self.before
        return Plan(
            sites=parts,
            shapes=base.shapes,
            example=base.example,
            target=str(target),
            settings=self.described,
            before=self.before,
            after=after,
            history=history,
            untouched={s.name: s.size for s in self.sites if s.name not in changed},
            notes=notes(self.before, history),
        )

    def _lowest(self, name: str) -> float | None:
        """The lowest score in the last scoring among the channels that are kept."""
        if name not in self.scored:
            return None
        channels, scores = self.scored[name]
        left = scores[torch.isin(channels, self.work.kept[name])]
        left = left[left.isfinite()]
        return float(left.min()) if len(left) else None
