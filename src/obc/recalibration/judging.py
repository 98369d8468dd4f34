"""Whether a fit that brings the outputs back also serves what the model is for.

The error over all that a network puts out weighs by size. A detector puts out boxes in pixels,
scores between 0 and 1 and features that nobody reads: an error that falls says little about its
mean average precision, and a cut may have silenced what is better left silent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from obc.recalibration.account import Recalibration
from obc.recalibration.draft import commit
from obc.recalibration.outcome import held_batch
from obc.recalibration.rows import portions
from obc.running.processes import Group

Judge = Callable[[nn.Module, Iterable[Any]], Sequence[float]]
"""Figures of a model on batches, more being better in each; none where these say nothing."""


def unseen(chosen: Sequence[Any], further: Sequence[Any]) -> list[Any]:
    """Batches of samples that no fit sees: further ones, or else those that were held out."""
    if further:
        return list(further)
    return [
        held_batch(batch, portion)
        for batch, portion in zip(chosen, portions(chosen), strict=True)
        if portion.holds_samples and portion.holds_any
    ]


def judged(
    pruned: nn.Module, fit: Callable[[], Recalibration], judge: Judge, batches: Sequence[Any]
) -> Recalibration:
    """Fit the model, and take that back where each figure is lower than the cut's on these batches.

    One figure may fall by chance, or for a gain in another; then the error of the outputs decides.
    """
    tensors = [t.detach() for t in (*pruned.parameters(), *pruned.buffers())]
    cut = [(tensor, tensor.clone()) for tensor in tensors]
    before = _figures(judge, pruned, batches)
    account = fit()
    if not account.kept or not before:
        return account
    try:
        after = _figures(judge, pruned, batches)
    except BaseException:
        commit(cut)
        raise
    worse = all(b < a for a, b in zip(before, after, strict=True))
    if worse:
        commit(cut)
    return replace(account, kept=not worse, judged=(before, after))


def _figures(judge: Judge, model: nn.Module, batches: Sequence[Any]) -> tuple[float, ...]:
    """The first process's, so that all decide alike, though they may round differently."""
    group = Group()
    return tuple(group.agreed(figure) for figure in judge(model, batches))
