"""Which weights put out logits: values that a sigmoid reads, and nothing else that computes.

Between the two, values may be moved: a YOLO joins its class scores with its boxes, lays the scales
side by side and takes the two apart again before the sigmoid. Which channels arrive there is told
by the values themselves, some of each channel, since what only moves them leaves them as they are.
A sigmoid whose output other activations are multiplied by is a gate; its input is no logit.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from obc.recalibration.forms import Form
from obc.recalibration.operators import Key, Parameters, aten
from obc.recalibration.recording import Counting, Node

SIGMOIDS = {aten.sigmoid, aten.sigmoid_}
MOVES = {
    *(aten.view, aten._unsafe_view, aten.unsqueeze, aten.squeeze, aten.expand, aten.alias),
    *(aten.t, aten.transpose, aten.permute, aten.cat, aten.stack, aten.clone, aten.detach),
    *(aten.split, aten.split_with_sizes, aten.slice, aten.select, aten.unbind),
}
_VALUES = 8  # of each channel


def candidates(nodes: list[Node]) -> set[Key]:
    """Weights from which a sigmoid can be reached by moves alone: all logits, and some others."""
    keys: set[Key] = set()
    for node in nodes:
        waiting = list(node.reads) if node.packet in SIGMOIDS else []
        while waiting:
            number = waiting.pop()
            if number < 0:
                continue
            before = nodes[number]
            if before.key is not None:
                keys.add(before.key)
            elif before.packet in MOVES:
                waiting += before.reads
    return keys


class Following(Counting):
    """A run that follows what some weights put out to the operators that compute with it."""

    def __init__(self, parameters: Parameters, keys: Collection[Key]) -> None:
        super().__init__(parameters)
        self._keys = keys
        self._values: dict[Key, Tensor] = {}  # of each weight's output, [channels, values]
        self._moved = WeakTensorKeyDictionary()  # tensors, and the weights whose output they hold
        self._behind = WeakTensorKeyDictionary()  # the same behind a sigmoid
        self._by_sigmoid: dict[Key, Tensor] = {}  # the channels that one has read
        self._otherwise: set[Key] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        uses = {k: u for k, u in self.count(func, args, kwargs).items() if k in self._keys}
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        moved, behind = (
            set().union(*(of.get(t, ()) for t in tensors)) for of in (self._moved, self._behind)
        )
        if func.overloadpacket in SIGMOIDS:
            self._note(tensors, moved)
            moved, behind = set(), moved
        elif func.overloadpacket not in MOVES:
            self._otherwise |= {k for k in moved if self._channels(k, tensors).any()}
            computed = [t for t in tensors if t in self._moved]
            if func.overloadpacket is aten.mul and len(computed) > 1:
                self._otherwise |= behind  # a gate of other activations
            moved, behind = set(), set()
        output = func(*args, **kwargs)
        self.casts(func, args, output)
        results = [t for t in tree_leaves(output) if isinstance(t, Tensor)]
        for tensor in results:
            self._moved[tensor], self._behind[tensor] = moved, behind
        for key, use in uses.items():
            self._values[key] = _some(use.form(), use.made(results[0]))
            self._moved[results[0]] = {key}
        return output

    def _note(self, tensors: list[Tensor], keys: set[Key]) -> None:
        for key in keys:
            read = self._channels(key, tensors)
            self._by_sigmoid[key] = self._by_sigmoid.get(key, torch.zeros_like(read)) | read

    def _channels(self, key: Key, tensors: list[Tensor]) -> Tensor:
        """Which channels of a weight's output are in these tensors, by their values."""
        read = torch.zeros(len(self._values[key]), dtype=torch.bool)
        for tensor in tensors:
            if key in self._moved.get(tensor, ()):
                values = self._values[key].to(tensor.device)
                read |= torch.isin(values, tensor.reshape(-1)).all(1).cpu()
        return read

    @property
    def logits(self) -> set[Key]:
        """Weights all of whose outputs a sigmoid reads, and nothing else."""
        return {k for k, read in self._by_sigmoid.items() if read.all()} - self._otherwise


def _some(form: Form, output: Tensor) -> Tensor:
    """Some values of each channel, [channels, values]."""
    step = max(1, form.positions // _VALUES)
    index = torch.arange(0, form.positions, step, device=output.device)
    return form.taken(output, index).mT
