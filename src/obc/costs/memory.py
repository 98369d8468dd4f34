"""The most bytes a model holds at once for its example: parameters, buffers, input, activations.

Memory is taken when an operator puts out a tensor and given back when nothing refers to it any
more. Which tensors are alive when follows from the user's code, not from their widths. So one run
notes the moments, and the bytes at each of them are a sum of products of dimensions:
peak(counts) = max over moments of the sum of bytes(counts) of what is alive then. What a kernel
takes inside for itself is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves

from obc.costs.cost_model import Shrinking, narrowed, state_bytes
from obc.costs.polynomials import Key, Peak, Term, collected
from obc.errors import ObcError
from obc.running.forward import Run, forward
from obc.running.modules import named_tensors
from obc.running.snapshot import unchanged
from obc.tracing.arguments import tensors_in
from obc.tracing.rules.products import plain_dims
from obc.tracing.tracer import Tracing
from obc.tracing.trial import full

MARGIN = 0.01  # a measured peak may be this far from the predicted one


def peak_bytes(model: nn.Module, example: Any) -> int:
    """Run the example and measure the most bytes that are held at once.

    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> state, x, hidden = (4 * 8 + 8 + 8 * 2 + 2) * 4, 4 * 4, 8 * 4
    >>> peak_bytes(net, torch.zeros(1, 4)) == state + x + 2 * hidden
    True
    """
    moments = _Moments(_resident(model, example), lambda tensor, _: _size(tensor), _plain)
    with unchanged(model):
        forward(model, example, run=moments.run)
    held = peak = sum(t.numel() * t.element_size() for t in _resident(model, example))
    for number, taken in moments.events:
        held += moments.pieces[number] if taken else -moments.pieces[number]
        peak = max(peak, held)
    return peak


def predicted_peak(tracing: Tracing) -> Peak:
    """The peak as a function of the kept counts, tried at full width and narrower."""
    flow = _Held(tracing)
    with unchanged(tracing.model):
        tracing.run(flow)
    inputs = [(t.element_size(), plain_dims(t)) for t in _tensors(tracing.example)]
    resident = [*state_bytes(tracing), *inputs]
    keys, moments = _table(resident, flow.moments.pieces, flow.moments.events)
    price = Peak(keys, moments, [s.size for s in tracing.sites])
    for share in (0, 3):
        kept = (
            {s.name: range(max(s.picked, s.size - s.size // share)) for s in tracing.sites}
            if share
            else {}
        )
        _check(tracing, price, kept)
    return price


def _table(
    resident: Iterable[Term], pieces: Sequence[Term], events: Sequence[tuple[int, bool]]
) -> tuple[list[Key], Tensor]:
    """The products that ever occur, and their factors at each moment when memory was taken."""
    number: dict[Key, int] = {}
    now: list[int] = []

    def add(term: Term, sign: int) -> None:
        key, factor = collected(term)
        if number.setdefault(key, len(now)) == len(now):
            now.append(0)
        now[number[key]] += sign * factor

    for term in resident:
        add(term, 1)
    rows = [list(now)]
    for piece, taken in events:
        add(pieces[piece], 1 if taken else -1)
        if taken:
            rows.append(list(now))
    table = torch.zeros(len(rows), len(number), dtype=torch.long)
    for row, factors in zip(table, rows, strict=True):
        row[: len(factors)] = torch.tensor(factors)
    return list(number), table.unique(dim=0)


def _check(tracing: Tracing, price: Peak, kept: dict[str, range]) -> None:
    """What is predicted must be what is measured on the model itself."""
    # With its values: torch copies a weight that is spread from a single number now and then.
    with narrowed(tracing, kept, full) as counts:
        measured = peak_bytes(tracing.model, tracing.example)
    predicted = int(price(counts))
    if abs(measured - predicted) > MARGIN * measured:
        raise ObcError(
            f"this model's memory does not follow its channels: {measured} bytes at its peak "
            f"where {predicted} were expected; give it another target, such as macs or params"
        )


def _tensors(value: Any) -> list[Tensor]:
    return [t for t in tree_leaves(value) if isinstance(t, Tensor)]


def _resident(model: nn.Module, example: Any) -> list[Tensor]:
    return [*{id(t): t for t in named_tensors(model).values()}.values(), *_tensors(example)]


def _size(tensor: Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _plain(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return func(*args, **kwargs)


class _Moments:
    """Notes when memory is taken and given back as operators are run in a given way.

    `events` are pieces of memory by number and whether they were taken or given back; `pieces`
    is what `describe` says of each from the tensor that first used it and the operator's
    arguments. What was there before the run is no piece.
    """

    def __init__(
        self,
        resident: Iterable[Tensor],
        describe: Callable[[Tensor, list[Tensor]], Any],
        run: Run,
    ) -> None:
        self.pieces: list[Any] = []
        self.events: list[tuple[int, bool]] = []
        self._describe, self._run = describe, run
        self._others = {ref.cdata: ref for ref in map(_reference, resident)}
        self._alive: dict[int, tuple[int, StorageWeakRef]] = {}

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._collect()
        inputs = [t for t in tensors_in((*args, *kwargs.values())) if t.layout == torch.strided]
        for ref in map(_reference, inputs):
            if ref.cdata not in self._alive:
                self._others[ref.cdata] = ref
        out = self._run(func, args, kwargs)
        for tensor in tensors_in(out if isinstance(out, (tuple, list)) else (out,)):
            if tensor.layout == torch.strided:
                self._take(tensor, inputs)
        return out

    def _collect(self) -> None:
        for data, (number, ref) in list(self._alive.items()):
            if ref.expired():
                del self._alive[data]
                self.events.append((number, False))

    def _take(self, tensor: Tensor, inputs: list[Tensor]) -> None:
        ref = _reference(tensor)
        if ref.cdata not in self._alive and ref.cdata not in self._others:
            self._alive[ref.cdata] = (len(self.pieces), ref)
            self.events.append((len(self.pieces), True))
            self.pieces.append(self._describe(tensor, inputs))


def _reference(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


class _Held(Shrinking):
    """A run with channel ids that notes the moments, and each piece of memory as a product."""

    def __init__(self, tracing: Tracing) -> None:
        super().__init__(tracing)
        resident = _resident(tracing.model, tracing.example)
        self.moments = _Moments(resident, self._term, super().dispatch)

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Around the flow, so that what the rules compute is not seen.
        return self.moments.run(func, args, kwargs)

    def _term(self, tensor: Tensor, inputs: list[Tensor]) -> Term:
        if tensor.numel() * tensor.element_size() != _size(tensor):
            return _size(tensor), []
        # A constant of a given shape has no ids: it is as large as what its shape was read off.
        alike = [t for t in inputs if t.shape == tensor.shape]
        dims = [self.dims(t) for t in (tensor, *alike)]
        return tensor.element_size(), next((d for d in dims if any(x.rate for x in d)), dims[0])
