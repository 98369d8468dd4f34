"""A model as it is now, and the way back to it."""

from __future__ import annotations

import torch
from torch import nn

from obc.running.modules import check_model


class Snapshot:
    """A model as it is now: classes, tensors, attributes, hooks, modes; `restore` puts all back.

    The tensors themselves are not copied, except for buffers, which a forward pass may write to.

    >>> net = nn.Sequential(nn.Linear(4, 2))
    >>> before = Snapshot(net)
    >>> net[0] = nn.Identity()
    >>> before.restore()
    >>> net
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
    )
    """

    def __init__(self, model: nn.Module) -> None:
        # A parametrization gives its module a class of its own, so classes are kept as well.
        self._modules = [(m, m.__class__, dict(m.__dict__)) for _, m in check_model(model)]
        # Parameters, buffers, children and hooks live in dictionaries, which keep their identity.
        held = [value for _, _, state in self._modules for value in state.values()]
        self._dicts = [(value, dict(value)) for value in held if isinstance(value, dict)]
        self._lists = [(value, list(value)) for value in held if isinstance(value, list)]
        buffers = {id(b): b for m, _, _ in self._modules for b in m._buffers.values()}
        self._buffers = [
            (b, b._version, b.clone()) for b in buffers.values() if b is not None and not b.is_meta
        ]

    def __enter__(self) -> None:
        """Whatever happens inside a `with`, the model is afterwards as it was at the snapshot."""

    def __exit__(self, *exception: object) -> None:
        self.restore()

    def restore(self) -> None:
        """Put everything back; what came after the snapshot is gone."""
        for module, kind, _ in self._modules:
            if module.__class__ is not kind:
                module.__class__ = kind
        states = [(m.__dict__, state) for m, _, state in self._modules]
        for live, saved in (*states, *self._dicts):
            if live or saved:  # most are tables of hooks, and empty
                live.clear()
                live.update(saved)
        for sequence, items in self._lists:
            sequence[:] = items
        with torch.no_grad():
            for buffer, version, value in self._buffers:
                if buffer._version != version:
                    buffer.copy_(value)


def unchanged(model: nn.Module) -> Snapshot:
    """Whatever happens inside, the model is afterwards as it was."""
    return Snapshot(model)
