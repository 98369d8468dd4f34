"""The order of weights in memory: on a processor, convolutions over channels that lie together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from obc.running.forward import forward, outputs
from obc.running.modules import duplicate


def may_be_channels_last(model: nn.Module, example: Any) -> bool:
    """Whether it pays, and stays inside: the model runs, and puts out what it did.

    Code such as `x.view(len(x), -1)` asks for one order, in the model or in a loss behind it. A
    transformer with a convolution at its beginning is slower so, by a tenth where measured.
    """
    weights = list(model.parameters())
    mixed = sum(p.numel() for p in weights if p.ndim == 4)
    if 2 * mixed <= sum(p.numel() for p in weights) or any(p.device.type != "cpu" for p in weights):
        return False
    trial = duplicate(model)
    channels_last(trial)
    before = outputs(forward(model, example))
    try:
        after = outputs(forward(trial, example))
    except Exception:
        return False
    return [t.stride() for t in before] == [t.stride() for t in after]


def channels_last(model: nn.Module) -> None:
    """Lay out the weights of convolutions so that channels lie together."""
    for p in model.parameters():
        if p.ndim == 4:
            p.data = p.data.contiguous(memory_format=torch.channels_last)


@contextmanager
def relaid(model: nn.Module) -> Iterator[None]:
    """Channels last for a while; afterwards every parameter is the memory it was."""
    before = [(p, p.data) for p in model.parameters() if p.ndim == 4]
    try:
        channels_last(model)
        yield
    finally:
        for p, data in before:
            p.data = data
