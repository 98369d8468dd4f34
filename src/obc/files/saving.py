"""`obc.save`: a pruned model as `model.safetensors` and `plan.json`, the old ones or the new."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Container
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from obc.disk import digest
from obc.disk.location import location
from obc.disk.reading import LIMIT
from obc.equivalent.attach import is_equivalent
from obc.errors import ObcError
from obc.files.artifact import Artifact
from obc.files.folder import PLAN, replacing
from obc.files.hugging import (
    check_pretrained,
    fitting_config,
    is_hugging,
    write_config,
    write_tokenizer,
)
from obc.files.modelling import MODELLING, class_in, narrowed_config, write_modelling
from obc.files.reference import reference as known_reference
from obc.files.shards import write_tensors
from obc.files.tensors import check_storable, collect, outside_state, stored
from obc.plans.plan import Plan
from obc.running.checks import check_whole
from obc.running.modules import check_model
from obc.running.offload import at_hand
from obc.surgery.record import applied
from obc.tracing.experts import moved
from obc.tracing.sites import shapes_of

_FULL = re.compile(r"parametrizations\.(\w+)\.original$")
_FACTOR = re.compile(r"parametrizations\.\w+\.0\.[CD]\.\d+\.")


@at_hand
def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    reference: str | None = None,
    max_shard_size: int = 5 * 10**9,
) -> None:
    """Write a pruned model into a folder, from which `obc.load` builds it again.

    Whatever happens on the way, the folder holds the artifact it held before or the new one. A
    Hugging Face model gets its `config.json` and its tokenizer too, so that plain `from_pretrained`
    loads the folder; where widths differ over layers, a modelling file that takes
    `trust_remote_code=True`. A warning says so where neither will do. `reference` is the name the
    model was built by, such as "torchvision:resnet50": it is written down for readers. Tensors of
    more than `max_shard_size` bytes are spread over several files, with Hugging Face's index.

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
    check_model(model)
    folder = location(path)
    if reference is not None and not isinstance(reference, str):
        raise ObcError(f"reference is the name the model was built by, not {reference!r}")
    check_whole("max_shard_size", max_shard_size, 1)
    _check_whole(model)
    tensors, ties = collect(model)
    check_storable(model, tensors)
    plans = list(applied(model))
    if plans:
        _check_same(model, plans[-1])
    artifact = Artifact(
        model=reference or known_reference(model),
        kind=f"{type(model).__module__}.{type(model).__qualname__}",
        plans=plans,
        equivalent="folded" if is_equivalent(model) else None,
        tensors=stored(tensors, outside_state(model) if is_hugging(model) else ()),
        ties=ties,
    )
    note = None
    with replacing(folder) as aside:
        if is_hugging(model):
            note = _write_for_hugging(model, artifact, tensors, aside, max_shard_size)
        else:
            _write(artifact, tensors, aside, max_shard_size)
    if note is not None:
        warnings.warn(
            f"{path} is for obc.load; from_pretrained cannot load this model: {note}", stacklevel=2
        )


def _write(artifact: Artifact, tensors: dict[str, Tensor], aside: Path, limit: int) -> None:
    text = artifact.text().encode()
    if len(text) > LIMIT:
        warnings.warn("the plans' history is too long to be kept; it is left out", stacklevel=4)
        plans = [plan.model_copy(update={"history": []}) for plan in artifact.plans]
        text = artifact.model_copy(update={"plans": plans}).text().encode()
    (aside / PLAN).write_bytes(text)
    inside = {n: t for n, t in tensors.items() if artifact.tensors[n].data is None}
    for path in write_tensors(inside, aside, digest.of_bytes(text), limit):
        shutil.copymode(aside / PLAN, path)  # safetensors would keep it to its owner


def _write_for_hugging(
    model: nn.Module, artifact: Artifact, tensors: dict[str, Tensor], aside: Path, limit: int
) -> str | None:
    """The artifact with a configuration beside it, or without one and the reason why."""
    note = "its C and D are not merged yet"
    for describe in (_uniform, _narrowed) if artifact.equivalent is None else ():
        try:
            names, kind = describe(model, aside)
            names = [*names, *write_tokenizer(model, aside)]
            _write(artifact.model_copy(update={"beside": names}), tensors, aside, limit)
            check_pretrained(model, kind, aside, artifact.plans)
            return None
        except ObcError as reason:
            note = str(reason)
            for path in aside.iterdir():
                path.unlink()
    _write(artifact, tensors, aside, limit)
    return note


def _uniform(model: nn.Module, aside: Path) -> tuple[list[str], Any]:
    """A configuration for a class of transformers, where one can say the widths."""
    return write_config(model, fitting_config(model), aside), type(model)


def _narrowed(model: nn.Module, aside: Path) -> tuple[list[str], Any]:
    """A configuration for a class of its own, which is written beside it."""
    names = write_config(model, narrowed_config(model), aside)
    write_modelling(model, aside)
    return [*names, MODELLING], class_in(aside)


def _check_whole(model: nn.Module) -> None:
    """A wrapper, or a larger model around a pruned one, could not be built again."""
    for name, module in model.named_modules():
        if name and applied(module):
            raise ObcError(f"not this model but '{name}' inside it was pruned; save that")


def _check_same(model: nn.Module, plan: Plan) -> None:
    """What was added or enlarged after the last cut is in no plan, so it could not be rebuilt."""
    where = plan.moves
    known = {new: s for n, s in plan.shapes.items() if (new := moved(n, where)) is not None}
    shapes = {
        _plain_name(n, known): s for n, s in shapes_of(model).items() if not _FACTOR.search(n)
    }
    for name in sorted(shapes.keys() ^ known.keys()):
        what = "came after" if name in shapes else "went after"
        raise ObcError(f"'{name}' {what} the last plan, so the model could not be built again")
    for name, shape in shapes.items():
        before = known[name]
        if len(before) != len(shape) or any(n > m for n, m in zip(shape, before, strict=True)):
            raise ObcError(
                f"'{name}' is {list(shape)} and was {before} before the last plan: it was changed "
                "since, so the model could not be built again"
            )


def _plain_name(name: str, known: Container[str]) -> str:
    """What a full weight was called before it got factors."""
    return name if name in known else _FULL.sub(r"\1", name)
