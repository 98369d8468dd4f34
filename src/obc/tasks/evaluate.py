"""`obc.evaluate`: what a model is worth, by a task or on plain data."""

from __future__ import annotations

from typing import Any

from torch import nn

from obc.running.modules import checked_module
from obc.running.offload import at_hand
from obc.tasks.classification import Classification
from obc.tasks.evaluation import Evaluation
from obc.tasks.task import Task


@at_hand
def evaluate(model: nn.Module, data: Any) -> Evaluation:
    """Evaluate a model by a task, or a classifier on images of `obc.data` or (inputs, labels).

    The model is in eval mode meanwhile and as it was afterwards.

    >>> import torch
    >>> batch = (torch.randn(8, 2), torch.randint(0, 3, (8,)))
    >>> evaluate(nn.Linear(2, 3), [batch]).top5
    100.0
    """
    return task_of(test=data).evaluate(checked_module(model))


def task_of(train: Any = None, test: Any = None) -> Task:
    """A task as it is, whichever place it was given in; data as those of a classification."""
    for given in (train, test):
        if is_task(given):
            task: Task = given
            return task
    return Classification(train, test)


def is_task(given: Any) -> bool:
    """Whether an object can do what a task does.

    >>> is_task(Classification()), is_task([1, 2])
    (True, False)
    """
    return all(callable(getattr(given, verb, None)) for verb in ("loss", "evaluate", "training"))
