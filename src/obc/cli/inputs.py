"""What the arguments of a command stand for: a model, images, an example, batches and a loss."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from obc.data import NAMES, Batch, Data, Images, load
from obc.errors import ObcError
from obc.files import folder
from obc.files.loading import load as load_artifact
from obc.files.reference import refer, reference
from obc.models import fitted, resolve
from obc.plans.example import rebuild
from obc.running.forward import forward
from obc.running.snapshot import unchanged
from obc.surgery.record import applied
from obc.tuning.distill import logits_of

_OPTION = re.compile(r",size=(\d+)$")


def data_of(text: str) -> Data:
    """Images by name and folder: "digits", "cifar10:data/cifar10", "folder:photos,size=96"."""
    name, _, place = text.partition(":")
    size = _OPTION.search(place)
    if size:
        return load(name, place[: size.start()], size=int(size[1]))
    if name in NAMES and name != "digits" and not place:
        raise ObcError(
            f"'{name}' is read from a folder: --data {name}:FOLDER; "
            f"`obc data {name} FOLDER` fetches what can be fetched"
        )
    return load(name, place or None)


def model_of(
    name: str,
    data: Data | None = None,
    weights: Path | None = None,
    pretrained: bool = False,
    seed: int = 0,
) -> nn.Module:
    """A model from a folder of `obc.save` or by name, with as many classes as the data has."""
    if Path(name).is_dir():
        return _saved(Path(name), weights, pretrained)
    if data is not None and not pretrained:
        name = fitted(name, data.shape, len(data.classes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = refer(resolve(name, pretrained=pretrained), name)
    if weights is not None:
        _fill(model, weights)
    return model.eval()


def _saved(path: Path, weights: Path | None, pretrained: bool) -> nn.Module:
    if weights is not None or pretrained:
        raise ObcError(f"{path} has weights of its own; leave --weights and --pretrained out")
    if not (path / folder.TENSORS).is_file():
        raise ObcError(f"{path} holds no model that obc saved: there is no {folder.TENSORS}")
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
        raise ObcError(f"{file} is for another model: {lines[min(1, len(lines) - 1)]}") from None


def example_of(model: nn.Module, data: Data | None = None, shape: str | None = None) -> Any:
    """Something the model takes: of this shape, one image of the data, or as last time."""
    example = _example(model, data, shape)
    try:
        with unchanged(model):
            forward(model, example)
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"the images of {data.name}" if data is not None and shape is None else "this input"
        raise ObcError(f"the model does not take {what}: {said}") from error
    return example


def _example(model: nn.Module, data: Data | None, shape: str | None) -> Any:
    if shape is not None:
        sides = re.fullmatch(r"\d+(x\d+)+", shape)
        if sides is None:
            raise ObcError(f"a shape looks like 1x3x224x224, not '{shape}'")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return torch.randn([int(n) for n in shape.split("x")])
    if data is not None:
        return next(data.test.test(1)).images
    plans = applied(model)
    if plans and plans[-1].example is not None:
        return rebuild(plans[-1].example, torch.device("cpu"), torch.float32)
    found = _usual(model)
    if found is None:
        raise ObcError("say what the model takes: --input 1x3x224x224, or --data digits")
    return found


def _usual(model: Any) -> Any:
    """The usual input of models whose library is known."""
    library, _, _ = (reference(model) or "").partition(":")
    if library in ("torchvision", "timm"):
        sides = getattr(model, "default_cfg", {}).get("input_size", (3, 224, 224))
        return torch.randn(1, *sides)
    if library == "hf":
        return getattr(model, "dummy_inputs", None)
    first = next((m for m in model.modules() if isinstance(m, nn.Conv2d)), None)
    own = type(model).__module__.startswith("obc.models.")
    return torch.randn(1, first.in_channels, 32, 32) if own and first is not None else None


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy, which the command line prunes and tunes classifiers by."""
    return F.cross_entropy(logits_of(model(batch.images)), batch.labels)


@dataclass(frozen=True)
class Batches:
    """Training batches in an order drawn anew for each round, as a shuffling loader's are."""

    images: Images
    size: int

    def __iter__(self) -> Iterator[Batch]:
        size = min(self.size, len(self.images))
        return self.images.train(size, seed=int(torch.randint(2**31, ())))

    def first(self, count: int, seed: int) -> list[Batch]:
        """The first batches of a round with this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return list(islice(iter(self), count))
