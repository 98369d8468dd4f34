"""Algorithm 1 of the paper, as one run over a shrinking copy of the model.

    while cost > target:              Run._reach
        score all channels            Run._score      N rows of the batches, the copy as it is now
        rank them                     Run._ranked     globally, or over another scope
        remove the p G lowest         Run._remove     from the copy; original indices are noted
    the last step is trimmed          Run.place       so that the target is met exactly

S. Chen et al., Optimal Brain Connection: Towards Efficient Structural Pruning, Algorithm 1.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from obc.costs.cost_model import costs_of
from obc.costs.fitted import Fitted
from obc.costs.targets import Target
from obc.criteria.reduce import AGGREGATORS, NORMALIZERS
from obc.criteria.score import Loss, Scorer
from obc.disk import digest
from obc.errors import ObcError
from obc.plans.plan import Plan, PlanStep, SitePlan
from obc.plans.trajectory import removed_scores
from obc.running.checks import check_batches
from obc.running.modules import duplicate
from obc.search import resume
from obc.search.carry import Carried
from obc.search.choice import never_chosen
from obc.search.feasibility import Reach
from obc.search.history import by_site, channels_by_site, lowest_kept, notes
from obc.search.landing import land
from obc.search.progress import Progress
from obc.search.ranking import Chunk, allowed_counts, check_scores, chunks_of, kinds, ranked
from obc.search.settings import Settings
from obc.search.settling import settle
from obc.search.stream import Stream
from obc.search.uniform import land_uniform
from obc.search.way import lowest, pace_of, way_to
from obc.search.working import Working
from obc.tracing.tracer import Tracing


class Run:
    """A model, its sites and costs, and a working copy that shrinks towards the targets.

    Args:
        model: stays as it is; the run works on a copy.
        example: an input of the model, as for `obc.trace`.
        batches: what rows are taken from.
        loss: `loss(model, batch)`, a scalar; None for criteria that look at weights alone.
        targets: of one unit.
        settings: everything else that `obc.plan` takes.
        folder: where the state is kept after every step, or None.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Any,
        batches: Iterable[Any],
        loss: Loss | None,
        targets: Sequence[Target],
        settings: Settings,
        folder: str | os.PathLike[str] | None,
    ) -> None:
        check_batches(batches)
        self.model, self.example, self.loss = model, example, loss
        self.targets, self.settings, self.folder = list(targets), settings, folder
        self.criterion = copy.deepcopy(settings.make_criterion())
        if self.criterion.evidence != "none" and loss is None:
            raise ObcError(
                "this criterion needs batches and a loss: plan(model, example, batches, loss, ...)",
                section="batches-and-loss",
            )
        tracing = Tracing(model, example)
        self.sites = tracing.sites
        if not len(self.sites):
            raise ObcError("nothing can be pruned: every channel is frozen; see trace(...).frozen")
        self.target = targets[0]  # the others are of the same unit
        costs = costs_of(tracing)
        price = self.target.price(costs)
        multiple = settings.round_to or (price.multiple if isinstance(price, Fitted) else 1)
        levels = [
            allowed_counts(site, floor, multiple)
            for site, floor in zip(self.sites, settings.floors(self.sites, model), strict=True)
        ]
        self.kinds = kinds(self.sites, model)
        self.removable = sum(counts[0] for counts in levels if len(counts) > 1)  # the paper's G
        self.work = Working(model, self.sites, as_it_is=self.target.unit == "latency")
        self.open = [s.name for s, counts in zip(self.sites, levels, strict=True) if counts[1:]]
        self.scorer = self._scorer()
        self.progress = Progress(self.scorer.group)
        self.last_scores: dict[str, tuple[Tensor, Tensor]] = {}  # by site: channels and scores
        self.order: list[Chunk] = []  # that the last landing went down
        self.clock: list[str] = []  # what predicted seconds came to
        self._joint: dict[str, Tensor] | None = None  # scores of the whole model that stay
        self.state = self._state()
        self.stream = Stream(batches, settings.seed, self.state.position)
        if self.target.measured and self.state.seconds is None:
            self.state.seconds = self.target.measure(model, example)
        self.reach = Reach(
            model, example, self.sites, levels, costs, self.target, price, self.state.seconds
        )
        self.pace = pace_of(settings, self.removable, self.reach)
        if self.state.history:
            self.work.remove({n: [*gone] for n, gone in removed_scores(self.state.history).items()})
            self.scorer.follow(self.work.sites)
            self.scorer.recall(self.state.findings)

    def _scorer(self) -> Scorer:
        """Of the working copy; sites that keep everything are not scored."""
        work, again = self.work, self.settings.checkpoint
        return Scorer(
            work.model, work.sites, self.loss, self.criterion, names=self.open, checkpoint=again
        )

    def _state(self) -> resume.State:
        """The state of a new run, or of the one that was begun in the folder."""
        by_weights = self.criterion.evidence == "none"
        run: resume.Facts = {
            **self.settings.described(),
            "targets": ", ".join(map(str, self.targets)),
        }
        if self.folder is not None:
            run["model"] = digest.of_model(self.model)
            run["processes"] = self.scorer.group.count
        carry = 0.0 if by_weights else self.settings.carry
        new = resume.State(run=run, carried=Carried(share=carry, rows=self.settings.rows))
        if self.folder is None:
            return new
        saved = resume.read(self.folder, new)
        # Without batches steps take no time; going through all of them draws the same numbers.
        again = self.criterion.joint or (by_weights and not self.target.measured)
        return new if again else saved

    def _save(self) -> None:
        if self.folder is not None and self.scorer.group.rank == 0:
            resume.write(self.folder, self.state)

    # -- the loop --------------------------------------------------------------------------

    def plans(self) -> list[Plan]:
        """Reach one target after the other, the loosest first; plans in the order asked for."""
        limits = [self.reach.limit(target) for target in self.targets]
        order = sorted(range(len(limits)), key=lambda i: -limits[i])
        feasible = self.reach.feasible(
            [self.targets[i] for i in order], exact=not self.settings.uniform
        )
        with self.progress.shown():
            for number, i in enumerate(order):
                if number >= len(self.state.landed):
                    self._reach(self.targets[i], feasible[number], limits[order[-1]])
        plans = dict(zip(order, self.state.landed, strict=True))
        return [plans[i] for i in range(len(order))]

    def advance(self) -> bool:
        """One step of Algorithm 1, towards no target; False where nothing is left to go."""
        ranking = self._ranked()
        if not ranking:
            return False
        going = lowest(ranking, self.pace, self.reach, self.counts())
        self._remove(going, self._seconds_without(going) if self.target.measured else None)
        self._save()
        self.progress.update(len(self.state.history), self.state.history[-1].after, None)
        return True

    def so_far(self) -> Plan:
        """The plan of all steps taken."""
        return self._plan(self.target)

    def _reach(self, target: Target, feasible: Sequence[int], last_limit: float) -> None:
        """Algorithm 1 for one target, from where the one before ended."""
        limit = self.reach.limit(target)
        while self.value() > limit:
            ranking = self._ranked()
            if not ranking:
                raise ObcError(
                    f"{target} cannot be met: what is left is at its floor or has infinite "
                    f"scores; reached {target.like(self.reach.whole, self.value())}"
                )
            going = lowest(ranking, self.pace, self.reach, self.counts())
            if self.target.measured:
                self._remove_in_time(going, limit)
            elif self.reach.value(self.counts(without=going)) <= limit:
                self.order = [*self.state.since, *ranking]
                self.place(target, len(self.state.since), feasible)
            else:
                self._remove(going)
            if self.value() > limit:  # what has landed is written together with its plan
                self._save()
            self._show_progress(last_limit)
        settle(self, target, feasible)
        self.reach.check(self.work.model, self.counts())
        self.state.landed.append(self._plan(target))
        self.state.since = []
        self._save()

    def counts(self, without: Sequence[Chunk] = ()) -> list[int]:
        """How many channels each site has now, or would have without some."""
        counts = [len(self.work.kept[site.name]) for site in self.sites]
        for chunk in without:
            counts[chunk.site] -= len(chunk.channels)
        return counts

    def value(self) -> float:
        """What the working copy costs, in the target's unit."""
        if not self.target.measured:
            return self.reach.value(self.counts())
        history = self.state.history
        seconds = history[-1].after.seconds if history else self.state.seconds
        assert seconds is not None
        return seconds

    def _show_progress(self, last_limit: float) -> None:
        after = self.state.history[-1].after
        ahead = partial(way_to, self.reach, self.counts(), last_limit, self.pace)
        self.progress.update(len(self.state.history), after, ahead)

    # -- score and rank --------------------------------------------------------------------

    def _score(self) -> dict[str, Tensor]:
        """Scores from fresh rows and the evidence that is carried along, or those of the start."""
        if not self.criterion.joint:
            return self._fresh()
        if self._joint is None:
            self._joint = self._fresh()
        return {n: values[self.work.kept[n]] for n, values in self._joint.items()}

    def _fresh(self) -> dict[str, Tensor]:
        """Scores of the working copy as it is."""
        before = self.stream.drawn
        totals = self.scorer.totals(self.stream.take(self.state.carried.fresh))
        self.state.findings = self.scorer.findings()
        aggregate = AGGREGATORS[self.settings.aggregate]
        scores = {n: aggregate(total).cpu().double() for n, total in totals.items()}
        scores = self.state.carried.joined(scores, self.stream.drawn - before)
        normalize = NORMALIZERS[self.settings.normalize]
        return {n: normalize(values) for n, values in scores.items()}

    def _ranked(self) -> list[Chunk]:
        """The channels of the working copy, freshly scored, the first to go first."""
        scores = self._score()
        check_scores(scores)
        self.last_scores = {n: (self.work.kept[n], values) for n, values in scores.items()}
        chunks = [
            chunks_of(i, self.work.kept[s.name].tolist(), scores[s.name], self.reach.levels[i])
            if s.name in scores
            else []
            for i, s in enumerate(self.sites)
        ]
        counts, savings = self.counts(), None
        if self.settings.rank == "score/cost":
            portions = [len(of_site[0].channels) if of_site else 0 for of_site in chunks]
            savings = self.reach.savings(counts, portions)
        sizes = [site.size for site in self.sites]
        return ranked(chunks, self.settings.scope, self.kinds, sizes, counts, savings)

    # -- remove ----------------------------------------------------------------------------

    def _remove(
        self,
        chunks: Sequence[Chunk],
        seconds: float | None = None,
        restored: dict[str, list[int]] | None = None,
    ) -> None:
        """Cut the working copy, and let its sites, the evidence and the history follow."""
        removed = channels_by_site(chunks, self.sites)
        places = self.work.remove(removed)
        self.scorer.follow(self.work.sites)
        self.state.carried.follow(places, sum(map(len, removed.values())) / self.removable)
        self.state.history.append(
            PlanStep(
                removed=removed,
                scores={
                    n: [score for _, score in pairs]
                    for n, pairs in by_site(chunks, self.sites).items()
                },
                restored=restored or {},
                after=self.reach.cost(self.counts(), seconds),
            )
        )
        self.state.since += chunks

    def _remove_in_time(self, going: Sequence[Chunk], limit: float) -> None:
        """Remove a step's channels, or the fewest of them that meet the limit, and measure."""
        low, high = 1, len(going)
        best = self._seconds_without(going)
        while best <= limit and low < high:
            middle = (low + high) // 2
            seconds = self._seconds_without(going[:middle])
            if seconds <= limit:
                high, best = middle, seconds
            else:
                low = middle + 1
        self._remove(going[:high], best)

    def _seconds_without(self, chunks: Sequence[Chunk]) -> float:
        trial = copy.copy(self.work)
        trial.model, trial.kept = duplicate(self.work.model), dict(self.work.kept)
        trial.remove(channels_by_site(chunks, self.sites))
        return self.target.measure(trial.model, self.example)

    # -- the last step of a target ---------------------------------------------------------

    def place(self, target: Target, done: int, feasible: Sequence[int]) -> None:
        """Remove as many channels of each site, in this order, as meet the target exactly.

        So much of the order is done. It went since the last landing and is open again: where the
        target asks for it, channels come back in favour of others.
        """
        order: list[list[Chunk]] = [[] for _ in self.sites]  # by site, the first to go first
        for chunk in self.order:
            order[chunk.site].append(chunk)
        levels = [
            self._levels(site.size, site.name, chunks)
            for site, chunks in zip(self.sites, order, strict=True)
        ]
        search = partial(land_uniform, kinds=self.kinds) if self.settings.uniform else land
        landing = search(
            self.reach.price,
            levels,
            done=[chunk.site for chunk in self.order[:done]],
            ranking=[chunk.site for chunk in self.order[done:]],
            limit=self.reach.limit(target),
        )
        places = list(landing.places)
        if not landing.met:
            below = all(n in counts for n, counts in zip(feasible, levels, strict=True))
            if self.settings.uniform or not below:
                self.reach.refuse(target, landing.value)
            places = [counts.index(n) for n, counts in zip(feasible, levels, strict=True)]
        gone = [c for chunks, place in zip(order, places, strict=True) for c in chunks[:place]]
        left = [set(self.work.kept[site.name].tolist()) for site in self.sites]
        before, after = {c for c in self.order if c.channels[0] not in left[c.site]}, set(gone)
        back = channels_by_site([c for c in self.order if c in before - after], self.sites)
        restored = {n: sorted(channels) for n, channels in back.items()}
        if restored:
            self._restore(restored)
        self._remove([c for c in gone if c not in before], restored=restored)

    def _levels(self, size: int, name: str, chunks: Sequence[Chunk]) -> list[int]:
        """The counts that a site can have, from the last landing down one chunk at a time."""
        landed = self.state.landed[-1].sites if self.state.landed else {}
        counts = [len(landed[name].kept) if name in landed else size]
        for chunk in chunks:
            counts.append(counts[-1] - len(chunk.channels))
        return counts

    def _restore(self, back: dict[str, list[int]]) -> None:
        """Make the working copy anew with channels that had gone; carried evidence is lost."""
        gone = removed_scores(self.state.history)
        self.work = Working(self.model, self.sites, as_it_is=self.target.unit == "latency")
        self.work.remove(
            {n: [i for i in scores if i not in back.get(n, ())] for n, scores in gone.items()}
        )
        self.scorer = self._scorer()
        self.scorer.recall(self.state.findings)
        self.state.carried.forget()

    # -- the plan --------------------------------------------------------------------------

    def _plan(self, target: Target) -> Plan:
        kept = {site.name: self.work.kept[site.name].tolist() for site in self.sites}
        changed = {s.name: kept[s.name] for s in self.sites if len(kept[s.name]) < s.size}
        base = Plan.from_kept(self.sites, changed)
        history, gone = list(self.state.history), removed_scores(self.state.history)
        lines = never_chosen(self.sites, kept, self.open, self.last_scores, gone)
        if self.settings.uniform:
            share = self.value() / self.reach.limit(target)
            lines.append(f"one width over layers: {share:.2%} of what {target} allows")
        return Plan(
            sites={
                site.name: SitePlan(
                    size=site.size,
                    kept=kept[site.name],
                    floor=self.reach.levels[i][-1],
                    highest_removed=max(gone[site.name].values()),
                    lowest_kept=lowest_kept(self.last_scores, self.work.kept, site.name),
                )
                for i, site in enumerate(self.sites)
                if site.name in changed
            },
            shapes=base.shapes,
            example=base.example,
            modules=base.modules,
            target=str(target),
            settings=self.settings.described(),
            before=self.reach.before,
            after=history[-1].after if history else self.reach.before,
            history=history,
            untouched={s.name: s.size for s in self.sites if s.name not in changed},
            notes=[*notes(self.reach.before, history), *self.clock, *lines],
        )
