"""What a run will take: steps, rows, seconds and memory, before it begins."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from obc.costs.counting import cost
from obc.criteria.score import Loss
from obc.running.modules import blocks_of, named_tensors
from obc.search.algorithm import Run
from obc.search.planner import prepare
from obc.search.way import clock, way_to

_ROWS = 50  # N, if the settings do not say
_PASSES = 2.1  # a row of products, in forward passes; docs/language.md has the measurement
_SIDE = 512  # of the matrices that tell how fast this machine multiplies


@dataclass(frozen=True)
class Estimate:
    """What a run is expected to take; `row` and `step` are the seconds measured for one of each.

    A step's own seconds are those beside its rows: ranking, cutting, tracing. `memory` are bytes:
    the model, its working copy, and at most the activations of one row.
    """

    steps: int
    rows: int
    seconds: float
    row: float
    step: float
    memory: int

    def __str__(self) -> str:
        return (
            f"about {self.steps} steps, {self.rows} rows and {clock(self.seconds)}; "
            f"one row takes {self.row:.2g} s, what else a step does {self.step:.2g} s; "
            f"{self.memory / 2**30:.2g} GB of memory"
        )


def estimate(
    model: nn.Module,
    example: Any = None,
    batches: Iterable[Any] = (),
    loss: Loss | None = None,
    **settings: Any,
) -> Estimate:
    """Try one step with one row, and count the steps to the strictest target.

    Steps are counted as if all sites lost the same share of their channels, and rows are expected
    to become cheaper as MACs do. Arguments are those of `obc.plan` with a cost target. A model on
    the meta device, which has shapes and no weights, is not run: seconds then follow from its MACs
    and from how fast this machine's processor multiplies matrices of its type.

    >>> import torch
    >>> net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 4))
    >>> batches = [torch.randn(16, 8) for _ in range(4)]
    >>> run = estimate(
    ...     net,
    ...     torch.zeros(1, 8),
    ...     batches,
    ...     lambda m, x: m(x).square().mean(),
    ...     target="macs=2x",
    ...     step=0.125,
    ...     rows=3,
    ... )
    >>> run.steps, run.rows
    (4, 12)
    """
    return estimate_run(trial(model, example, batches, loss, **settings), settings)


def trial(
    model: nn.Module, example: Any, batches: Iterable[Any], loss: Loss | None, **settings: Any
) -> Run:
    """A run with one row a step, to be measured and thrown away."""
    settings = {**settings, "rows": 1, "carry": 0.0, "resume": None}
    return prepare(model, example, batches, loss, **settings)


def estimate_run(run: Run, settings: Mapping[str, Any]) -> Estimate:
    """Try one step of a trial run, for a run with these settings."""
    rows, carry = int(settings.get("rows", _ROWS)), float(settings.get("carry", 0.0))
    limit = min(run.reach.limit(target) for target in run.targets)
    way = way_to(run.reach, [site.size for site in run.sites], limit, run.pace)
    memory = _memory(run)  # before the step that is tried makes the copy smaller
    shapes_only = any(p.is_meta for p in run.model.parameters())
    row, step = _predicted(run) if shapes_only else _measured(run)
    if not row:
        rows = 0
    once = run.criterion.joint
    later = max(1, round(rows * (1 - carry))) if rows and not once else 0
    count = rows + (way.steps - 1) * later if way.steps else 0
    seconds = way.steps * step + count * row * (1.0 if once else way.share)
    return Estimate(way.steps, count, seconds, row, step, memory)


def _measured(run: Run) -> tuple[float, float]:
    """Seconds of one row, and of one step beside it; the first of each only warms up."""
    times = []
    for _ in range(2):
        start = time.perf_counter()
        if run.criterion.evidence != "none":
            run.scorer.totals(run.stream.take(1))
        times.append(time.perf_counter() - start)
    row = times[-1] if run.criterion.evidence != "none" else 0.0
    start = time.perf_counter()
    run.advance()
    return row, max(0.0, time.perf_counter() - start - row)


def _predicted(run: Run) -> tuple[float, float]:
    """Seconds of one row of a model without weights; what a step does beside it is not known."""
    if run.criterion.evidence == "none":
        return 0.0, 0.0
    model = run.work.model
    (batch,) = run.stream.take(1)
    ids = batch[0] if isinstance(batch, (tuple, list)) else batch
    inputs = tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, ids)
    dtype = next(p.dtype for p in model.parameters() if p.is_floating_point())
    square = torch.ones(_SIDE, _SIDE, dtype=dtype)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        square @ square
        times.append(time.perf_counter() - start)
    return _PASSES * cost(model, inputs).macs / _SIDE**3 * min(times), 0.0


def _memory(run: Run) -> int:
    """Bytes of the model, its working copy, and what one row keeps for its gradients."""
    weights = sum(t.numel() * t.element_size() for t in named_tensors(run.model).values())
    return 2 * weights + (_kept(run) if run.criterion.evidence != "none" else 0)


def _kept(run: Run) -> int:
    """Bytes that a forward pass keeps with all weights learning, which scoring does not exceed."""
    model, seen = run.work.model, dict[int, int]()
    weights = {t.untyped_storage()._cdata for t in named_tensors(model).values()}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            seen[storage._cdata] = storage.nbytes()
        return tensor

    for parameter in model.parameters():
        parameter.requires_grad_(parameter.is_floating_point())
    (batch,) = run.stream.take(1)
    assert run.loss is not None
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        run.loss(model, batch)
    if not run.settings.checkpoint:
        return sum(seen.values())
    blocks = model.get_submodule(blocks_of(model))
    return sum(seen.values()) // max(1, len(list(blocks.children())))
