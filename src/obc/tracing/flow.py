"""Run a model once while channel ids ride along with its data (fact 3 of the method page).

Every dimension of every parameter gets ids, one per index. A tensor in flight carries *labels*:
each label is an integer tensor of the same number of dimensions, of size 1 wherever the id does
not change, so that `[1, 64, 1, 1]` labels the channels of `[8, 64, 32, 32]`. An id of -1 marks a
position that no parameter stands for, such as padding.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from obc.running.forward import closed, forward, outputs
from obc.running.modules import ModuleStack, tensors_of, walk
from obc.tracing.arguments import (
    bind,
    schema_name,
    shapes_and_numbers,
    short_name,
    tensors_in,
    tensors_within,
)
from obc.tracing.ledger import Ledger, Pick, Place
from obc.tracing.meta import Shapes

if TYPE_CHECKING:  # the rules are written in terms of this module
    from obc.tracing.rules.registry import Operator

# Recurrent layers check sizes in Python and C++ alike; nothing inside them may shrink.
OPAQUE: tuple[type[nn.Module], ...] = (nn.RNNBase, nn.RNNCellBase)
NOWHERE = Place("", "", "")
_NOT_USER_CODE = (
    f"{Path(torch.__file__).parent}{os.sep}",
    *(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("running", "tracing")),
    str(Path(sysconfig.get_paths()["stdlib"]) / "contextlib.py"),
)


@dataclass(slots=True, eq=False)
class Tracked:
    """What is known of a tensor: its labels, and what went into it.

    `origin` is "weight" if parameters did and no data, "buffer" if buffers alone did; `step` is
    the number of the step that made it; `pick` is set if its values are numbers of channels that
    were picked.
    """

    labels: tuple[Tensor, ...] = ()
    origin: str = "data"
    step: int = -1
    pick: Pick | None = None

    @property
    def weight(self) -> bool:
        return self.origin == "weight"


@dataclass
class Leaf:
    """A parameter or buffer of the model and the ids of each of its dimensions."""

    name: str
    tensor: Tensor
    dims: tuple[Tensor | None, ...]
    start: int  # its ids follow each other from here, dimension by dimension
    users: set[str] = field(default_factory=set)  # the modules that use it

    def __post_init__(self) -> None:
        views: list[Tensor] = []
        for dim, ids in enumerate(self.dims):
            if ids is not None:
                shape = [1] * len(self.dims)
                shape[dim] = -1
                views.append(ids if len(shape) == 1 else ids.view(shape))
        self.tracked = Tracked(tuple(views), _origin(self.tensor))


def _origin(tensor: Tensor) -> str:
    return "weight" if isinstance(tensor, nn.Parameter) else "buffer"


@dataclass(slots=True)
class Call:
    """One operator call, with its arguments by name."""

    flow: Flow
    func: Any
    args: dict[str, Any]
    out: Any
    place: Place
    origin: str
    pick: Pick | None = None

    @property
    def ledger(self) -> Ledger:
        return self.flow.ledger

    def __getitem__(self, name: str) -> Any:
        return self.args.get(name)

    def of(self, tensor: Any) -> Tracked | None:
        """What is known of a tensor; None for constants made along the way, which follow shapes."""
        return self.flow.of(tensor) if isinstance(tensor, Tensor) else None

    def labels(self, name: str) -> tuple[Tensor, ...]:
        known = self.of(self[name])
        return known.labels if known else ()

    def tensors(self) -> list[Tensor]:
        return tensors_in(self.args.values())


def labelled_dims(leaves: Iterable[Leaf]) -> list[tuple[Leaf, int, Tensor, int]]:
    """Every dimension of every leaf that has ids: leaf, dimension, ids, and the first of them."""
    dims = []
    for leaf in leaves:
        start = leaf.start
        for dim, ids in enumerate(leaf.dims):
            if ids is not None:
                dims.append((leaf, dim, ids, start))
                start += ids.numel()  # len() of a tensor takes Python longer
    return dims


class Step(NamedTuple):
    """One call: what, where, the ids that reached it, and the steps whose data it read."""

    operator: Operator
    place: Place
    ids: tuple[Tensor, ...]
    reads: tuple[int, ...]


class ModuleCall(NamedTuple):
    """One call of a module that puts out one tensor as large as its first argument.

    It ran the operators `begin` to `end`; `taken` and `given` are what is known of the two.
    """

    path: str
    begin: int
    end: int
    taken: Tracked | None
    given: Tracked | None


Rule = Callable[[Call], Any]


class Flow:
    """Sees each operator of a run; afterwards `ledger`, `leaves` and `steps` tell."""

    def __init__(self, model: nn.Module, find: Callable[[Any], Operator]) -> None:
        self.ledger = Ledger()
        self.find = find
        self.leaves: dict[int, Leaf] = {}
        self.steps: list[Step] = []
        self.whole: list[Tensor] = []  # what the model put out at full width
        self.ops: list[tuple[str, ...]] = []  # operators and the parameters they used
        self.given: list[tuple[Any, ...]] = []  # shapes and numbers that operators were given
        self.calls: list[ModuleCall] = []
        self.handed: list[tuple[str, str, tuple[Tensor, ...]]] = []  # caller, called, and ids
        modules = walk(model)
        tensors = tensors_of(modules)
        self._names = {id(t): n for n, t in tensors.items()}
        self._inputs: dict[int, Tensor] = {}
        self._shapes = Shapes() if any(t.is_meta for t in tensors.values()) else None
        self._has_opaque = any(isinstance(m, OPAQUE) for _, m in modules)
        self._stack = ModuleStack(modules)

    def through(self, model: nn.Module, example: Any) -> Any:
        """Run a model on an example under this flow; neither end of it shrinks."""
        for tensor in tree_leaves(example):
            if isinstance(tensor, Tensor):
                self._inputs[id(tensor)] = tensor
        return self._through(model, example)

    def _through(self, model: nn.Module, example: Any, training: bool = False) -> Any:
        self._stack.start(lambda: len(self.ops), self._left)
        try:
            output = forward(model, example, training, self.dispatch)
        finally:
            self._stack.stop()
        self._freeze_outputs(output)
        return output

    def through_training(self, model: nn.Module, example: Any) -> None:
        """Follow what the model does in train mode only: a head whose output is a loss, say.

        It adds ids and ties; the recorded steps stay those of eval mode.
        """
        records: tuple[list[Any], ...] = (self.ops, self.given, self.steps, self.calls)
        lengths = [len(record) for record in records]
        try:
            self._through(model, example, training=True)
        finally:
            for record, length in zip(records, lengths, strict=True):
                del record[length:]

    def _freeze_outputs(self, output: Any) -> None:
        for tensor in outputs(output):
            known = self.of(tensor)
            for ids in known.labels if known else ():
                self.ledger.freeze(ids, "model output", NOWHERE)
        for kind in closed(output):
            every = torch.arange(self.ledger.size)
            self.ledger.freeze(every, f"the model returns a {kind}, which may hold it", NOWHERE)

    def name(self, tensor: Tensor) -> str | None:
        """The name of a parameter or buffer in the model."""
        return self._names.get(id(tensor))

    def of(self, tensor: Tensor) -> Tracked | None:
        key = id(tensor)
        name = self._names.get(key)
        if name is not None:
            leaf = self.leaves.get(key)
            if leaf is None:
                start = self.ledger.size
                dims = tuple([self.ledger.fresh(n) if n > 1 else None for n in tensor.shape])
                leaf = self.leaves[key] = Leaf(name, tensor, dims, start)
            leaf.users.add(self._stack.path)
            return leaf.tracked
        # What is known of a tensor in flight is written on it: no table to search or to empty.
        mark = getattr(tensor, "_obc_flow", None)
        if mark is not None and mark[0] is self:
            known: Tracked = mark[1]
            return known
        return Tracked() if key in self._inputs else None

    def _left(self, path: str, begin: int, inputs: Any, output: Any) -> None:
        # A parameter that is handed on gets its ids where it is read: here, that would be recorded.
        there = [
            self.of(t)
            for t in tensors_within((inputs, output))
            if id(t) in self.leaves or id(t) not in self._names
        ]
        ids = tuple([label for known in there if known is not None for label in known.labels])
        self.handed.append((self._stack.path, path, ids))
        first = inputs[0] if inputs else None
        if self.ledger.picks and isinstance(first, Tensor):
            rows = self.ledger.picks[-1].rows
            rows[path] = rows.get(path, 0) + first.shape[:-1].numel()
        if (
            isinstance(first, Tensor)
            and isinstance(output, Tensor)
            and first.shape == output.shape
            and id(first) not in self._names
            and id(output) not in self._names
        ):
            call = ModuleCall(path, begin, len(self.ops), self.of(first), self.of(output))
            self.calls.append(call)

    def set(self, tensor: Tensor, tracked: Tracked) -> None:
        if id(tensor) not in self._names and id(tensor) not in self._inputs:
            tensor._obc_flow = (self, tracked)  # type: ignore[attr-defined]

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, and let the ids of what it was given pass through it."""
        names, values = self._names, (*args, *kwargs.values()) if kwargs else args
        tensors = tensors_in(values)
        used = [names[id(t)] for t in tensors if id(t) in names]
        self.ops.append((schema_name(func), *used))
        self.given.append(shapes_and_numbers(values))
        known = [k for k in map(self.of, tensors) if k is not None]
        if not known:
            return func(*args, **kwargs)
        place = Place(self._stack.path, short_name(func), _line())
        reached = tuple([label for k in known for label in k.labels])
        reads = tuple([k.step for k in known if k.origin == "data"])
        operator = self.find(func)
        self.steps.append(Step(operator, place, reached, reads))
        origin = "data" if reads else "weight" if any([k.weight for k in known]) else "buffer"
        call = Call(self, func, bind(func, args, kwargs), None, place, origin)
        call.out = self.run(func, args, kwargs)
        opaque = self._opaque() if self._has_opaque else None
        if opaque is not None:
            freeze_all(call, f"{type(opaque).__name__} layers are not pruned")
        else:
            self._follow(operator, call)
        return call.out

    def _follow(self, operator: Operator, call: Call) -> None:
        """Let a rule say what becomes of the labels; where it fails, all that reached it stays."""
        try:
            labels = operator.labels(call)
        except Exception as error:
            text = str(error).strip().partition("\n")[0] or repr(error)
            return freeze_all(call, f"the rule of {call.place.op} does not cover this call: {text}")
        if labels is not None:
            self.record(call, labels)

    def _opaque(self) -> nn.Module | None:
        return next((m for _, m, _ in self._stack.running if isinstance(m, OPAQUE)), None)

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the operator itself."""
        return self._shapes.run(func, args, kwargs) if self._shapes else func(*args, **kwargs)

    def record(self, call: Call, labels: Any) -> None:
        """Attach a rule's answer (labels per output tensor) to the outputs."""
        many, step = isinstance(call.out, (tuple, list)), len(self.steps) - 1
        for i, out in enumerate(tensors_in(call.out if many else (call.out,))):
            out_labels = (labels[i] if i < len(labels) else ()) if many else labels
            pick = _numbered(call, out) if self.ledger.picks else None
            self.set(out, Tracked(tuple(map(compact, out_labels)), call.origin, step, pick))


# What rearranges or converts numbers of channels puts out such numbers again.
_NUMBERS = {f"aten::{n}" for n in ("view", "_unsafe_view", "sort", "_to_copy", "clone")}


def _numbered(call: Call, out: Tensor) -> Pick | None:
    """The pick whose channels the values of an output number."""
    if call.pick is not None:
        if out.is_floating_point():
            return None
        if not out.is_meta:
            call.pick.times = out.reshape(-1).bincount(minlength=len(call.pick.ids)).tolist()
        return call.pick
    known = call.of(call["self"]) if schema_name(call.func) in _NUMBERS else None
    return known.pick if known is not None else None


def freeze_all(call: Call, text: str) -> None:
    """Freeze whatever reached this call; what leaves it is data."""
    for tensor in call.tensors():
        known = call.of(tensor)
        for ids in known.labels if known else ():
            call.ledger.freeze(ids, text, call.place)
            if known is not None and known.weight:
                call.ledger.mark("out", ids)  # so that the layer itself is listed
    for out in tensors_in(call.out if isinstance(call.out, (tuple, list)) else (call.out,)):
        if not any(out is t for t in call.tensors()):
            call.flow.set(out, Tracked())


def compact(ids: Tensor) -> Tensor:
    """Shrink the dimensions along which the ids do not change to size 1."""
    shape = ids.shape
    for dim, stride in enumerate(ids.stride()):  # first what costs nothing to see
        if stride == 0 and shape[dim] > 1:
            ids = ids.narrow(dim, 0, 1)
    wide = [dim for dim, size in enumerate(ids.shape) if size > 1]
    if len(wide) > 1:  # along a single dimension they always change
        for dim in wide:
            if not changes(ids, dim):
                ids = ids.narrow(dim, 0, 1)
    return ids


def changes(ids: Tensor, dim: int) -> bool:
    """Whether ids change along a dimension; most do where it begins."""
    start = ids.as_strided((2,), (ids.stride(dim),)).tolist()
    return start[0] != start[1] or not bool((ids == ids.narrow(dim, 0, 1)).all())


def _line() -> str:
    """The line of the user's code that is running, outside torch and this library."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = _user_file(frame.f_code.co_filename)
        if name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def user_line(frame: FrameType, number: int) -> str:
    """File and line of a frame, if it is neither torch's nor ours."""
    name = _user_file(frame.f_code.co_filename)
    return f"{name}:{number}" if name else ""


@cache
def _user_file(name: str) -> str:
    return "" if name.startswith(_NOT_USER_CODE) else Path(name).name
