"""What the arguments of a command stand for: a task, a model, an example."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from obc.errors import ObcError
from obc.files import folder, shards
from obc.files.loading import load as load_artifact
from obc.files.reference import refer, reference
from obc.models import resolve
from obc.plans.example import rebuild
from obc.running.forward import forward
from obc.running.snapshot import unchanged
from obc.surgery.record import applied
from obc.tasks import resolve as resolve_task
from obc.tasks.language import Language
from obc.tasks.task import Task


def task_of(data: str | None, task: str | None, model: str | None = None) -> Task:
    """The task that --data or --task names; just one of them does."""
    named = [name for name in (data, task) if name is not None]
    if len(named) != 1:
        raise ObcError("say what the model is for: either --data NAME, or --task file.py:make")
    return resolve_task(named[0], model)


def model_of(
    name: str,
    task: Task | None = None,
    weights: Path | None = None,
    pretrained: bool = False,
    seed: int = 0,
) -> nn.Module:
    """A model from a folder of `obc.save` or by name, with as many classes as the task has.

    A plain folder of Hugging Face may be named with "hf:" before it or without; its weights are
    taken where there are any.
    """
    place = Path(name.removeprefix("hf:"))
    if place.is_dir() and (place / "config.json").is_file() and not (place / folder.PLAN).exists():
        name = f"hf:{place.resolve()}"
        pretrained = weights is None and any(place.glob("*.safetensors"))
        if weights is None and not pretrained and (pickled := sorted(place.glob("*.bin"))):
            raise ObcError(
                f"{place} has pickled weights alone ({pickled[0].name}), which obc does not read; "
                "transformers' own from_pretrained and save_pretrained write them as safetensors"
            )
    elif place.is_dir() and place == Path(name):
        return _saved(place, weights, pretrained)
    if task is not None and not pretrained:
        name = task.fitted(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = refer(resolve(name, pretrained=pretrained), name)
    if weights is not None:
        _fill(model, weights)
    return model.eval()


def untrained(name: str, weights: Path | None = None, pretrained: bool = False) -> str:
    """A note where a model has nothing but the random weights it is built with; "" elsewhere.

    A file of the user's own may bring weights, and so does a checkpoint.

    >>> untrained("timm:resnet18")
    'timm:resnet18 has random weights: --pretrained or --weights FILE gives it others'
    >>> untrained("timm:resnet18", pretrained=True)
    ''
    """
    place = Path(name.removeprefix("hf:"))
    saved = place.is_dir() and any(place.glob("*.safetensors"))
    if weights or pretrained or saved or ".py:" in name or name.endswith(".pt"):
        return ""
    return f"{name} has random weights: --pretrained or --weights FILE gives it others"


def _saved(path: Path, weights: Path | None, pretrained: bool) -> nn.Module:
    if weights is not None or pretrained:
        raise ObcError(f"{path} has weights of its own; leave --weights and --pretrained out")
    if not shards.is_saved(path):
        raise ObcError(f"{path} holds no model that obc saved: there is no {shards.TENSORS}")
    with folder.reading(path) as (_, artifact):
        name = artifact.model
    if name is None:
        raise ObcError(f"{path} does not say which model it was; obc.save(…, reference=…) does")
    return load_artifact(name, path).eval()


def _fill(model: nn.Module, file: Path) -> None:
    if file.suffix != ".safetensors":
        raise ObcError(f"{file}: weights are read from safetensors files, never from pickled ones")
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ObcError(f"{file} cannot be read: {error}") from None
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        reason = _other_classes(model, tensors) or lines[min(1, len(lines) - 1)]
        raise ObcError(f"{file} is for another model: {reason}") from None


def _other_classes(model: nn.Module, tensors: Mapping[str, Tensor]) -> str:
    """What to do where tensors differ in one size at most: other widths would change two of some.

    >>> _other_classes(nn.Linear(2, 3), {"weight": torch.ones(4, 2), "bias": torch.ones(4)})
    "'weight' is [4, 2] in it, not [3, 2]; for another number of classes add num_classes=…"
    >>> _other_classes(nn.Linear(2, 3), {"weight": torch.ones(4, 5), "bias": torch.ones(4)})
    ''
    """
    state = model.state_dict()
    if state.keys() != tensors.keys():
        return ""
    pairs = {n: (list(tensors[n].shape), list(t.shape)) for n, t in state.items()}
    differ = {n: pair for n, pair in pairs.items() if pair[0] != pair[1]}
    if not differ or any(
        len(there) != len(here) or sum(x != y for x, y in zip(there, here, strict=True)) > 1
        for there, here in differ.values()
    ):
        return ""
    name, (there, here) = next(iter(differ.items()))
    return f"'{name}' is {there} in it, not {here}; for another number of classes add num_classes=…"


def planned(
    task: Task,
    criterion: str,
    options: Mapping[str, Any],
    *,
    paper: bool = False,
    checkpoint: bool = False,
) -> dict[str, Any]:
    """What to plan with: the options that are set, and the task's own settings for the others.

    The paper's rows and steps are those of `Task`, whatever a task of today does better with; the
    size of a batch, and which sites are pruned at all, stay the task's.
    """
    settings = dict(getattr(task, "planning", Task.planning))
    if paper:
        settings |= {name: Task.planning[name] for name in ("rows", "step")}
        settings = {k: v for k, v in settings.items() if k not in ("expected", "pace", "block")}
    elif "expected" in settings and (checkpoint or criterion != "jacobian"):
        settings = dict(Task.planning)  # single samples are for that criterion, in one pass
    if criterion != "jacobian":
        settings.pop("block", None)  # of that criterion alone
    return {**settings, **{name: value for name, value in options.items() if value is not None}}


def example_of(model: nn.Module, task: Task | None = None, shape: str | None = None) -> Any:
    """Something the model takes: of this shape, the task's example, or as last time."""
    example = _example(model, task, shape)
    try:
        with unchanged(model):
            forward(model, example)
    except Exception as error:
        if isinstance(task, Language) and shape is None:
            task.check(model, example)  # an embedding says only that an index is out of range
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"the inputs of {task.name}" if task is not None and shape is None else "this input"
        raise ObcError(f"the model does not take {what}: {said}") from error
    return example


def _example(model: nn.Module, task: Task | None, shape: str | None) -> Any:
    if shape is not None:
        if re.fullmatch(r"\d+(x\d+)+", shape) is None:
            raise ObcError(f"a shape looks like 1x3x224x224, not '{shape}'")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            sides = [int(n) for n in shape.split("x")]
            first = next((m for m in model.modules() if [*m.parameters(recurse=False)]), None)
            if isinstance(first, nn.Embedding):
                return torch.randint(first.num_embeddings, sides)
            return torch.randn(sides)
    if task is not None:
        return task.example()
    plans = applied(model)
    if plans and plans[-1].example is not None:
        return rebuild(plans[-1].example, torch.device("cpu"), torch.float32)
    usual = _usual(model)
    if usual is None:
        raise ObcError("say what the model takes: --input 1x3x224x224, or --data digits")
    return usual


def _usual(model: Any) -> Any:
    """The usual input of models whose library is known."""
    library, _, _ = (reference(model) or "").partition(":")
    if library in ("torchvision", "timm"):
        sides = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
        return torch.randn(1, *sides)
    if library == "hf":
        return getattr(model, "dummy_inputs", None)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    ours = type(model).__module__.startswith("obc.models.")
    return torch.randn(1, first.in_channels, 32, 32) if ours and first is not None else None
