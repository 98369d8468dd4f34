"""The name of a model with as many inputs and classes as some images have."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from obc.models.resolver import OWN, options_of

_LIBRARIES = ("torchvision", "timm", "hf", "ultralytics")


def fitted(name: str, shape: Sequence[int], classes: int) -> str:
    """Add what the name leaves open; what it says stays. Files of yours are left alone.

    >>> fitted("resnet20,width=8", (1, 8, 8), 10)
    'resnet20,width=8,num_classes=10,in_channels=1'
    >>> fitted("torchvision:resnet18", (3, 224, 224), 7)
    'torchvision:resnet18,num_classes=7'
    >>> fitted("net.py:build", (1, 8, 8), 10)
    'net.py:build'
    """
    plain, given = options_of(name)
    options = {"num_classes": classes}
    if plain in OWN:
        options["in_channels"] = shape[0]
        if "image" in inspect.signature(OWN[plain]).parameters:
            options["image"] = shape[-1]
    elif plain.partition(":")[0] not in _LIBRARIES or plain.endswith(".pt"):
        return name
    return name + "".join(f",{k}={v}" for k, v in options.items() if k not in given)
