"""Recalibration on the calibration batches of a task."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from obc.recalibration.account import Recalibration
from obc.recalibration.recalibrate import call_by, recalibrate, said_by
from obc.tasks.task import Task

_BATCHES = 16  # each waits with a thread and with modules of its own


def recalibrate_for(
    task: Task,
    pruned: nn.Module,
    original: nn.Module,
    *,
    samples: int = 512,
    batch_size: int = 128,
    seed: int = 0,
) -> Recalibration:
    """`obc.recalibrate` on training data of a task, drawn by `seed`; torch's generator stays.

    Args:
        task: whose calibration batches are used, and what of them a model takes.
        pruned: what `obc.apply` returned; changed in place.
        original: the model it was cut from.
        samples: how many samples are used, in whole batches.
        batch_size: of the batches that pass through the models one by one; more, where there
            would be many: rows of a text are scored one at a time, and fitted together.
        seed: of the samples, and of the positions at which layers are compared.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        batch_size = max(batch_size, -(-samples // _BATCHES))
        batches = task.calibration(min(batch_size, samples))
        call = partial(call_by, task)
        return recalibrate(
            pruned,
            original,
            batches,
            call=call,
            samples=samples,
            **said_by(task),
            seed=seed,
        )
