"""Layers whose weights torch keeps packed, as quantized ones do: no parameter could be cut."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from obc.running.modules import walk
from obc.tracing.ledger import Place, Reason


def packed(model: nn.Module) -> Iterator[tuple[str, int, Reason]]:
    """Such layers, how many channels each puts out, and why these stay.

    >>> list(packed(nn.Linear(4, 2)))
    []
    """
    for path, module in walk(model):
        if not any(isinstance(value, torch.ScriptObject) for value in vars(module).values()):
            continue
        # A layer keeps its package under a name of its own: "fc._packed_params".
        parts = path.split(".")
        private = next((i for i, part in enumerate(parts) if part.startswith("_")), len(parts))
        layer = ".".join(parts[:private])
        owner = model.get_submodule(layer)
        sizes = (getattr(owner, n, 0) for n in ("out_features", "out_channels", "hidden_size"))
        place = Place(layer, "", type(owner).__qualname__)
        yield layer, next(filter(None, sizes), 0), Reason("weights are packed, as quantized", place)
