"""The models of the sweep, none of which another test names: built small, with random weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.hugging import import_transformers
from tests.vision import import_torchvision


@dataclass(frozen=True)
class Family:
    """A model to build, an example, and what to know of its arithmetic.

    `drawn` says that every parameter may be drawn anew; where that makes numbers overflow, a
    model keeps the weights it is built with.
    """

    library: str
    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    drawn: bool = True
    spared: str = ""  # part of the names of sites that are not cut
    dtype: torch.dtype = torch.float64

    def __repr__(self) -> str:
        return f"{self.library}-{self.name}"


def hugging(kind: str, settings: dict[str, Any]) -> nn.Module:
    """A class of transformers from a configuration."""
    model = getattr(import_transformers(), kind)
    made: nn.Module = model(model.config_class(**settings))
    return made


def timm(name: str, **settings: Any) -> nn.Module:
    """A classifier of timm with six classes."""
    import_torchvision()
    import timm as library

    model: nn.Module = library.create_model(name, pretrained=False, num_classes=6, **settings)
    return model


def torchvision(name: str, **settings: Any) -> nn.Module:
    """A model of torchvision without weights."""
    model: nn.Module = import_torchvision().models.get_model(name, weights=None, **settings)
    return model
