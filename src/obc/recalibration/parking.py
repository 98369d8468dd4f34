"""Activations of a run that waits, moved to the CPU where they would fill a device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from obc.recalibration.operators import Parameters

_SHARE = 0.5  # of a device's memory


class Parking:
    """What one run made and still holds, and where it waits meanwhile.

    Tensors stay the same objects: their storages are emptied, and filled again before the run goes
    on. The model's tensors, and autocast's copies of them, stay.
    """

    def __init__(self, model: nn.Module, parameters: Parameters) -> None:
        self._parameters = parameters
        self._buffers = {b.untyped_storage()._cdata for b in model.buffers()}
        self._made = WeakTensorKeyDictionary()
        self._away: list[tuple[UntypedStorage, UntypedStorage]] = []

    def note(self, output: Any) -> None:
        """Remember what an operator put out, for as long as anybody holds it."""
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                self._made[tensor] = None

    def park(self) -> None:
        """Move everything away."""
        storages: dict[int, UntypedStorage] = {}
        for tensor in self._made:
            storage = tensor.untyped_storage()
            model = storage._cdata in self._buffers or self._parameters.of(tensor) is not None
            if not model and storage.resizable():
                storages[storage._cdata] = storage
        for storage in storages.values():
            if storage.nbytes():
                self._away.append((storage, UntypedStorage(storage.nbytes()).copy_(storage)))
                storage.resize_(0)

    def fetch(self) -> None:
        """Bring everything back."""
        while self._away:
            storage, values = self._away.pop()
            storage.resize_(values.nbytes())
            storage.copy_(values)


def can_fill(model: nn.Module) -> bool:
    """Whether a model computes on a device with memory of its own."""
    return any(p.device.type == "cuda" for p in model.parameters())


def crowded(device: torch.device) -> bool:
    """Whether tensors take more than half of a device's memory."""
    if device.type != "cuda":
        return False
    total = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.memory_allocated(device) > _SHARE * total
