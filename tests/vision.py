"""Models from torchvision and timm, both of which need torchvision's operators to exist."""

from __future__ import annotations

import functools
import importlib.util
from types import ModuleType
from typing import Any

import torch
from torch import nn

# What torchvision adds Python code to as it is imported; its compiled library defines them.
OPERATORS = ("torchvision::nms", "torchvision::qnms")
SIGNATURE = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


@functools.cache
def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled library does not load beside a CPU-only torch."""
    try:
        import torchvision
    except RuntimeError:  # operator torchvision::nms does not exist
        for name in OPERATORS:
            torch.library.define(name, SIGNATURE)
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
