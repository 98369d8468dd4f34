"""The name by which a model was built, kept on the model where it is known."""

from __future__ import annotations

from torch import nn

# An ordinary attribute, as with the plans: copied with the model, no part of its state dict.
_ATTRIBUTE = "_obc_reference"


def reference(model: nn.Module) -> str | None:
    """The name, such as "torchvision:resnet50", if it is known."""
    name = getattr(model, _ATTRIBUTE, None)
    return name if isinstance(name, str) else None


def refer(model: nn.Module, name: str | None) -> nn.Module:
    """Keep the name on the model, and return it."""
    if name is not None:
        setattr(model, _ATTRIBUTE, name)
    return model
