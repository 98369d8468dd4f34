"""`obc.save`: a pruned model as `model.safetensors` and `plan.json`, the old ones or the new."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from torch import nn

from obc.errors import ObcError
from obc.files.artifact import Artifact
from obc.files.folder import PLAN, TENSORS, replacing
from obc.files.tensors import check_storable, collect, stored, write
from obc.planning.plan import Plan
from obc.surgery.record import applied
from obc.trace.sites import shapes_of


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a pruned model into a folder, from which `obc.load` builds it again.

    Whatever happens on the way, the folder holds the artifact it held before or the new one.

    >>> import tempfile, torch, obc
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> sites = obc.trace(net, torch.zeros(1, 4))
    >>> pruned = obc.apply(net, obc.Plan.from_kept(sites, {"0": [0, 2, 5]}))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(pruned, folder)
    ...     fresh = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    ...     obc.load(fresh, folder)[0]
    Linear(in_features=4, out_features=3, bias=True)
    """
    tensors, ties = collect(model)
    check_storable(model, tensors)
    plans = list(applied(model))
    if plans:
        _check_same(model, plans[-1])
    artifact = Artifact(
        kind=f"{type(model).__module__}.{type(model).__qualname__}",
        plans=plans,
        tensors=stored(tensors),
        ties=ties,
    )
    text = artifact.text().encode()
    with replacing(Path(path)) as aside:
        (aside / PLAN).write_bytes(text)
        write(tensors, aside / TENSORS, hashlib.sha256(text).hexdigest())


def _check_same(model: nn.Module, plan: Plan) -> None:
    """What was added or enlarged after the last cut is in no plan, so it could not be rebuilt."""
    shapes = shapes_of(model)
    for name in sorted(shapes.keys() ^ plan.shapes.keys()):
        what = "came after" if name in shapes else "went after"
        raise ObcError(f"'{name}' {what} the last plan, so the model could not be built again")
    for name, shape in shapes.items():
        before = plan.shapes[name]
        if len(before) != len(shape) or any(n > m for n, m in zip(shape, before, strict=True)):
            raise ObcError(
                f"'{name}' is {list(shape)} and was {before} before the last plan: it was changed "
                "since, so the model could not be built again"
            )
