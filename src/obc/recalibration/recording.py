"""One run of a network, written down: its weights in order, norms behind them, residual sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from obc.recalibration.forms import Form
from obc.recalibration.operators import BATCH_NORMS, Key, Operand, Parameters, Use, aten

_ADDITIONS = {aten.add, aten.add_}
_VIEWS = {aten.view, aten._unsafe_view}
_NORMS = {aten.native_layer_norm, aten._fused_rms_norm, aten.rsqrt}
_SIZES = {aten.mean, aten.pow, aten.square, aten.mul, aten._to_copy, *_ADDITIONS, *_VIEWS}
_ROUTERS = {aten.topk, aten.sort, aten.argsort, aten.nonzero, aten.argmax, aten.unique_consecutive}
_PICKS = {aten.index, aten.index_select, aten.gather, aten.masked_select}
_RETURNS = {aten.index_add, aten.index_add_, aten.index_put, aten.index_put_, aten.scatter_add_}

Moment = tuple[Key | None, int]
"""A point of a run: the last use of a weight before it, and the operators since."""


@dataclass(frozen=True)
class BatchNorm:
    """A batch norm at work: γ, β, mean and variance; it puts out γ (x − mean) / σ + β."""

    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    variance: Tensor
    eps: float

    @property
    def scale(self) -> Tensor:
        """γ / σ."""
        sigma = (self.variance.double() + self.eps).sqrt()
        return (1.0 if self.weight is None else self.weight.detach().double()) / sigma


@dataclass
class Node:
    """One operator of a run, the nodes that it reads, and how often its output is read.

    `computed` tells that the output depends on which values were large, `picked` that its rows do.
    """

    packet: Any
    moment: Moment
    reads: tuple[int, ...]
    key: Key | None = None
    norm: BatchNorm | None = None
    adds: bool = False
    computed: bool = False
    picked: bool = False
    readers: int = 0


@dataclass
class Reader:
    """What a run shows of one weight in use: the operands, and the form that they make.

    `statistics` are those of a batch norm, whose weight this is. `norm` is the batch norm that
    alone reads its output, `shortcut` the moment at which the tensor
    was made that its output, behind that norm, is added to; `normed` tells that a norm of each
    position reads that sum; `routed` tells that the rows it reads were picked by values that the
    network computed, as those of an expert; `logits` tells that only a sigmoid reads its output.
    """

    key: Key
    weight: Operand
    bias: Operand | None
    form: Form
    statistics: BatchNorm | None = None
    norm: BatchNorm | None = None
    shortcut: Moment | None = None
    normed: bool = False
    routed: bool = False
    logits: bool = False


class Counting(TorchDispatchMode):
    """Follows a run: which weight is used now, and how many operators ran since the last one."""

    def __init__(self, parameters: Parameters) -> None:
        super().__init__()
        self.parameters = parameters
        self._uses: Counter[tuple[str, int]] = Counter()
        self.moment: Moment = (None, 0)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def count(self, func: Any, args: Any, kwargs: Any) -> dict[Key, Use]:
        """Note an operator that is about to run, and the uses of weights that it makes."""
        uses: dict[Key, Use] = {}
        self.moment = (self.moment[0], self.moment[1] + 1)
        for use in () if kwargs else self.parameters.uses(func, args):
            slot = (use.weight.name, use.index)
            key = (*slot, self._uses[slot])
            self._uses[slot] += 1
            self.moment = (key, 0)
            uses[key] = use
        return uses

    def casts(self, func: Any, args: Any, output: Any) -> None:
        """Note an operator that has run."""
        if func.overloadpacket is aten._to_copy:
            self.parameters.copied(args[0], output)


class Recording(Counting):
    """Writes down a run of the network inside `with`."""

    def __init__(self, model: nn.Module, names: Mapping[str, str] | None = None) -> None:
        super().__init__(Parameters(model, names))
        self._node_of = WeakTensorKeyDictionary()
        self._buffers = WeakTensorKeyDictionary(dict.fromkeys(model.buffers()))
        self.nodes: list[Node] = []
        self.readers: dict[Key, Reader] = {}
        self.others: dict[str, str] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        uses = self.count(func, args, kwargs)
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
        reads = tuple(self._node_of.get(t, -1) for t in tensors)
        for number in reads:
            if number >= 0:
                self.nodes[number].readers += 1
        node = Node(func.overloadpacket, self.moment, reads, next(iter(uses), None))
        if func.overloadpacket in BATCH_NORMS and self._has_statistics(args):
            node.norm = BatchNorm(args[1], args[2], args[3], args[4], args[-1])
        node.adds = (
            func.overloadpacket in _ADDITIONS
            and not kwargs
            and len(tensors) == 2
            and tensors[0].shape == tensors[1].shape
        )
        self._routing(node)
        for key, use in uses.items():
            form = replace(use.form(), input=torch.empty(0))  # nothing is kept alive by it
            routed = node.picked or use.rows is not None
            self.readers[key] = Reader(key, use.weight, use.bias, form, node.norm, routed=routed)
        output = func(*args, **kwargs)
        self.casts(func, args, output)
        self._other_uses(func, tensors, uses.values(), output)
        self.nodes.append(node)
        for tensor in tree_leaves(output):
            if isinstance(tensor, Tensor):
                self._node_of[tensor] = len(self.nodes) - 1
        return output

    def _has_statistics(self, args: Any) -> bool:
        """Whether a batch norm goes by a buffer of the model; an instance norm makes copies."""
        return args[3] is not None and args[3] in self._buffers and args[5] is not True

    def _other_uses(
        self, func: Any, tensors: list[Tensor], uses: Iterable[Use], output: Any
    ) -> None:
        """Note parameters that work here otherwise than as a weight or a bias."""
        operands = [operand for use in uses for operand in (use.weight, use.bias)]
        names = {operand.name for operand in operands if operand is not None}
        known = [o for t in tensors if (o := self.parameters.of(t)) is not None]
        known = [o for o in known if o.name not in names]
        results = [t for t in tree_leaves(output) if isinstance(t, Tensor)]
        if any(self.parameters.of(t) is not None for t in results):
            return  # a view of a parameter, or a copy in another type
        for operand in known:
            self.others[operand.name] = func.overloadpacket.__name__

    def _routing(self, node: Node) -> None:
        """Whether this node picks rows by computed values, or works on such rows."""
        before = [self.nodes[n] for n in node.reads if n >= 0]
        node.computed = node.packet in _ROUTERS or any(n.computed for n in before if n.key is None)
        picks = node.packet in _PICKS and any(n.computed for n in before)
        node.picked = picks or (node.packet not in _RETURNS and any(n.picked for n in before))

    def finish(self) -> None:
        """Note the norm behind each weight, and the sums that it enters."""
        for node in self.nodes:
            made = self._maker(node.reads[0]) if node.norm is not None else None
            if made is not None:
                self._reader(made).norm = node.norm
        normed = self._normed()
        for number, node in enumerate(self.nodes):
            for mine, other in (node.reads, node.reads[::-1]) if node.adds else ():
                made = self._maker(mine)
                # Of the two layers, the one that ran last takes over what the other lost.
                if made is not None and 0 <= other < made:
                    self._reader(made).shortcut = self.nodes[other].moment
                    self._reader(made).normed = number in normed

    def _normed(self) -> set[int]:
        """Sums that a norm of each position reads, or that go into such a sum."""
        normed: set[int] = set()
        for number in reversed(range(len(self.nodes))):
            node = self.nodes[number]
            if node.packet in _NORMS:
                at = node.reads[0]
                # Written out, a norm is x · rsqrt(mean(x²) + ε).
                while at >= 0 and not self.nodes[at].adds and self.nodes[at].packet in _SIZES:
                    at = self.nodes[at].reads[0]
                normed.add(at)
            elif number in normed and (node.adds or node.packet in _VIEWS):
                normed.update(node.reads)
        return normed

    def _reader(self, number: int) -> Reader:
        key = self.nodes[number].key
        assert key is not None
        return self.readers[key]

    def _maker(self, number: int) -> int | None:
        """The node of the weight whose output this is, behind views and a batch norm only."""
        while number >= 0 and self.nodes[number].readers == 1:
            node = self.nodes[number]
            if node.norm is None and node.key is not None:
                return number
            if node.norm is None and node.packet not in _VIEWS:
                return None
            number = node.reads[0]
        return None

    @property
    def shared(self) -> dict[Key, str]:
        """Uses of weights whose elements serve elsewhere, too, and where that is."""
        of: dict[str, list[Key]] = {}
        for key in self.readers:
            of.setdefault(key[0], []).append(key)
        result: dict[Key, str] = {}
        for name, keys in of.items():
            if name in self.others:
                result |= dict.fromkeys(keys, f"the parameter is also used by {self.others[name]}")
            elif len(keys) > 1:
                result |= dict.fromkeys(self._overlapping(keys), "several operators share it")
        return result

    def _overlapping(self, keys: list[Key]) -> list[Key]:
        operands = [self.readers[k].weight for k in keys]
        numbers = torch.arange(operands[0].parameter.numel())
        places = [o.of(numbers).unique() for o in operands]
        counts = torch.cat(places).bincount(minlength=len(numbers))
        return [k for k, p in zip(keys, places, strict=True) if int(counts[p].max()) > 1]
