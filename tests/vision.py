"""Models from torchvision and timm, both of which need torchvision's operators to exist."""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import Any

from torch import nn

from obc.models.torchvision_operators import declare


@functools.cache
def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled library does not load beside a CPU-only torch."""
    declare()
    import torchvision

    return torchvision


def torchvision_model(name: str, **changes: Any) -> nn.Module:
    """A torchvision classifier of six classes with random weights."""
    return import_torchvision().models.get_model(
        name, weights=None, **{"num_classes": 6, **changes}
    )


def timm_model(name: str, **changes: Any) -> nn.Module:
    """A timm classifier of six classes with random weights."""
    import_torchvision()
    import timm

    return timm.create_model(name, pretrained=False, num_classes=6, **changes)


def installed(package: str) -> bool:
    """Whether a package is there, without importing it."""
    return importlib.util.find_spec(package) is not None
