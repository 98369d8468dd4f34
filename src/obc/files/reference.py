"""The name by which a model was built, kept on the model where it is known."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from obc.files.hugging import is_hugging

# An ordinary attribute, as with the plans: copied with the model, no part of its state dict.
_ATTRIBUTE = "_obc_reference"


def reference(model: nn.Module) -> str | None:
    """The name, such as "torchvision:resnet50", if it is known.

    A model of transformers knows the folder or the name that `from_pretrained` found it by.
    """
    name = getattr(model, _ATTRIBUTE, None)
    if isinstance(name, str):
        return name
    place = getattr(model, "name_or_path", "") if is_hugging(model) else ""
    if not place:
        return None
    return f"hf:{Path(place).resolve() if Path(place).is_dir() else place}"


def refer(model: nn.Module, name: str | None) -> nn.Module:
    """Keep the name on the model, and return it."""
    if name is not None:
        setattr(model, _ATTRIBUTE, name)
    return model


def forget(model: nn.Module) -> None:
    """Leave no name on a model, for files that are read where there is no obc."""
    model.__dict__.pop(_ATTRIBUTE, None)
