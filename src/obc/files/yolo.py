"""A pruned model of ultralytics where its users work with it: inside a `YOLO`.

`YOLO` itself keeps checkpoints as pickled modules, and its trainers build a model anew from its
YAML file, at full width. obc writes no pickle: `obc.save` and `obc.load` keep a pruned model as any
other, and `as_yolo` puts it into a `YOLO` that predicts, validates, exports, and trains what it
holds. `yolo.save("small.pt")`, which is ultralytics' own method, writes a checkpoint that a plain
`YOLO("small.pt")` loads without obc; to train that one, hand `train` the trainer of `trainer_for`.

ultralytics is under the AGPL, and imported only when one of these functions is called.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

from obc.errors import ObcError
from obc.files.reference import forget as forget_reference
from obc.models.resolver import library
from obc.surgery.record import forget


def as_yolo(model: nn.Module) -> Any:
    """A `YOLO` with a copy of a model of ultralytics in it, pruned or not.

    Weights that were trained in it come back to the pruned model, which alone remembers its plan
    and can be saved by obc, by `model.load_state_dict(yolo.model.state_dict())`.
    """
    if not type(model).__module__.startswith("ultralytics."):
        raise ObcError(f"a {type(model).__name__} is no model of ultralytics")
    base = library("ultralytics", "ultralytics").YOLO
    inner: Any = copy.deepcopy(model)
    # What ultralytics pickles shall load where there is no obc.
    forget(inner)
    forget_reference(inner)
    _narrow_halves(inner)
    yolo = base(inner.yaml["yaml_file"], task=getattr(inner, "task", None))
    yolo.__class__ = type("PrunedYOLO", (base,), {"task_map": property(_task_map)})
    inner.args, inner.task = yolo.model.args, yolo.task
    # A model that came from a checkpoint is handed to the trainer; one from a YAML file is not.
    yolo.model, yolo.ckpt = inner, {"model": inner}
    return yolo


def _narrow_halves(model: nn.Module) -> None:
    """Set the width of the halves that some blocks remember to what they have now.

    C2f and its kin halve what `cv1` puts out by `chunk` in `forward`, which knows no widths, and by
    the width `c` in `forward_split`, which takes its place when ultralytics exports a model.
    """
    blocks: list[Any] = [m for m in model.modules() if hasattr(m, "forward_split")]
    for block in blocks:
        block.c = block.cv1.conv.out_channels // 2


def trainer_for(task: str = "detect") -> type:
    """The trainer of ultralytics for a task, which trains the model it is handed as it is."""
    yolo: Any = library("ultralytics", "ultralytics").YOLO
    return _keeping(yolo.task_map.fget(yolo)[task]["trainer"])


def _task_map(yolo: Any) -> dict[str, dict[str, Any]]:
    """What `YOLO` says, with trainers that keep a pruned model."""
    parent: Any = library("ultralytics", "ultralytics").YOLO
    tasks: dict[str, dict[str, Any]] = parent.task_map.fget(yolo)
    return {name: {**kinds, "trainer": _keeping(kinds["trainer"])} for name, kinds in tasks.items()}


def _keeping(trainer: Any) -> type:
    return type(f"Pruned{trainer.__name__}", (trainer,), {"get_model": _kept_model})


def _kept_model(trainer: Any, cfg: Any = None, weights: Any = None, verbose: bool = True) -> Any:
    """The model itself, where ultralytics would build another from `cfg` and fill in what fits."""
    if not isinstance(weights, nn.Module):
        raise ObcError(
            "there is no model to train: use as_yolo(model).train(…), or YOLO('small.pt')"
        )
    model: Any = copy.deepcopy(weights).float()
    known, there = model.model[-1].nc, trainer.data["nc"]
    if known != there:
        raise ObcError(f"the model knows {known} classes, the data has {there}")
    model.names = trainer.data["names"]
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model
