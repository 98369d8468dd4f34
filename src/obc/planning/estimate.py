"""How long a search for a quality will take, as far as that can be said before it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from obc.criteria.score import Loss
from obc.errors import ObcError
from obc.planning.places import Places, first_batches
from obc.planning.planner import by_blocks
from obc.planning.promise import most_places
from obc.planning.quality import Quality
from obc.search.estimate import Estimate, estimate_run, trial
from obc.search.way import clock
from obc.tasks.task import Task

_SHARE = 0.5  # of the cost: how far a search is taken to go


@dataclass(frozen=True)
class SearchEstimate(Estimate):
    """What a search is expected to take if it goes as far as `until`.

    `places` are evaluated at most; `place` is the seconds measured for one of them: cutting,
    recalibrating and evaluating on half of the test data.
    """

    until: str
    places: int
    place: float

    def __str__(self) -> str:
        return (
            f"how far it allows to go is what the search finds out; as far as {self.until}, about "
            f"{self.steps} steps, {self.rows} rows, up to {self.places} places cut, recalibrated "
            f"and evaluated, and {clock(self.seconds)}; one row takes {self.row:.2g} s, what else "
            f"a step does {self.step:.2g} s, one place {self.place:.2g} s; "
            f"{self.memory / 2**30:.2g} GB of memory"
        )


def estimate_search(
    model: nn.Module,
    example: Any = None,
    batches: Iterable[Any] = (),
    loss: Loss | None = None,
    *,
    target: str | Quality,
    task: Task,
    minimise: str = "macs",
    samples: int = 512,
    **settings: Any,
) -> SearchEstimate:
    """Try one step with one row, and one place; count them as for half of the cost.

    Args:
        model: stays as it is.
        example: as for `obc.plan`.
        batches: as for `obc.plan`.
        loss: as for `obc.plan`.
        target: a quality target.
        task: evaluates, and stands for the three before where they are left out.
        minimise: the cost that is to be low.
        samples: how many recalibration uses; 0 leaves it out.
        settings: as for `obc.plan` with a quality target.
    """
    quality = target if isinstance(target, Quality) else Quality.parse(target)
    quality.of(task.metrics)
    if any(p.is_meta for p in model.parameters()):
        raise ObcError(f"{quality} is measured, which takes weights; there are none")
    until, settings = f"{minimise}={1 / _SHARE:g}x", by_blocks(settings)
    run = trial(model, example, batches, loss, target=until, task=task, **settings)
    ahead = estimate_run(run, settings)
    rows = first_batches(batches or task.calibration(), samples, run.settings.seed)
    start = time.perf_counter()
    task.evaluate(Places(run, task, rows, samples, None).model(1), "search")
    place = time.perf_counter() - start
    places = most_places(_SHARE, ahead.steps)
    whole = {**asdict(ahead), "seconds": ahead.seconds + places * place}
    return SearchEstimate(**whole, until=until, places=places, place=place)
