"""`obc.load`: build a pruned model from its original class and a folder, all of it checked."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

from obc.disk.location import location
from obc.equivalent.apply import apply
from obc.errors import ObcError
from obc.files.artifact import Artifact
from obc.files.folder import reading
from obc.files.reference import refer
from obc.files.tensors import check_file, check_model, fill
from obc.models import resolve
from obc.running import modules
from obc.running.snapshot import Snapshot
from obc.surgery.record import applied


def load(model: nn.Module | str, path: str | os.PathLike[str], *, example: Any = None) -> nn.Module:
    """Cut a fresh model as the saved one was cut, give it the saved tensors, and return it.

    `model` is of the original class and size, on any device or on none (meta), or a reference
    such as "torchvision:resnet50". Nothing in the folder is run or unpickled; if anything in it is
    not as it should be, the model stays as it was. `example` replaces that of the plans.
    """
    if isinstance(model, str):
        with torch.random.fork_rng(devices=[]):  # what it draws is overwritten at once
            fresh = resolve(model)
        return refer(load(fresh, path, example=example), model)
    modules.check_model(model)
    with reading(location(path)) as (file, artifact):
        _check_fresh(model, artifact)
        check_file(file, artifact)
        before, kinds = Snapshot(model), [(m, m.__class__) for m in model.modules()]
        try:
            _cut(model, artifact, example)
            check_model(model, artifact)
            fill(model, file, artifact)
        except BaseException:
            for module, kind in kinds:  # factors give a layer a class of its own
                module.__class__ = kind
            before.restore()
            raise
    return refer(model, artifact.model)


def _cut(model: nn.Module, artifact: Artifact, example: Any) -> None:
    for i, plan in enumerate(artifact.plans, 1):
        if artifact.equivalent is None or i < len(artifact.plans):
            apply(model, plan, example=example)
        else:
            apply(model, plan, example=example, equivalent=True)


def _check_fresh(model: nn.Module, artifact: Artifact) -> None:
    if applied(model):
        raise ObcError("this model was pruned before; load wants a fresh one of the original size")
    if artifact.equivalent not in (None, "folded"):
        raise ObcError(
            "the file holds C and D as layers of their own, which only the first version of obc "
            "built; load and merge it there, and save it again"
        )
    if artifact.plans:
        artifact.plans[0].check(model)
    else:
        check_model(model, artifact)
