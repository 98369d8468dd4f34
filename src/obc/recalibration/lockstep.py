"""Runs of networks that stop at each weight, so that one waits there for the others.

Each run is a thread, and only one of them works at a time: a thread goes on when it is told to,
and whoever told it waits until it stops at the next weight or ends. Torch's modes belong to their
thread, and a model's forward can be held anywhere inside it.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from obc.recalibration.operators import Key, Parameters, Use
from obc.recalibration.parking import Parking
from obc.recalibration.recording import Counting, Moment
from obc.running.modules import duplicate

Call = Callable[[nn.Module, Any], Any]
"""How a model is called with a batch."""


@dataclass
class Stop:
    """A run that waits at a weight; `output` is there if the run stops behind the operator."""

    key: Key
    use: Use
    output: Tensor | None
    shortcut: Tensor | None


class _Cancelled(BaseException):
    """Raised inside a run that is no longer wanted."""


class Run:
    """One network, a `twin` of its own, on one batch.

    `stop` is where it waits now, None before it begins and at the end.
    """

    stop: Stop | None

    def __init__(self, model: nn.Module, batch: Any, call: Call, watch: Watch) -> None:
        self._go: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._there: queue.SimpleQueue[Stop | BaseException | None] = queue.SimpleQueue()
        self._watch = watch
        watch.pause = self._pause
        self._thread = threading.Thread(target=self._work, args=(model, batch, call), daemon=True)
        self._thread.start()
        self.stop, self.begun = None, False
        self._result: Any = None

    def advance(self) -> None:
        """Go on to the next weight, or to the end."""
        self.fetch()
        self.begun, self.stop = True, None
        self._go.put(True)
        there = self._there.get()
        if isinstance(there, BaseException):
            raise there
        self.stop = there

    def park(self) -> None:
        """Move what the run holds off its device, if it keeps track of that."""
        if self._watch.parking is not None:
            self._watch.parking.park()

    def fetch(self) -> None:
        """Bring back what `park` moved away."""
        if self._watch.parking is not None:
            self._watch.parking.fetch()

    def finish(self) -> Any:
        """Go on to the end; returns what the network put out, and keeps nothing of it."""
        while not self.begun or self.stop is not None:
            self.advance()
        result, self._result = self._result, None
        return result

    def cancel(self) -> None:
        """End the run wherever it is."""
        self._go.put(False)
        self._thread.join()
        self.stop = None

    def _pause(self, stop: Stop) -> None:
        self._there.put(stop)
        if not self._go.get():
            raise _Cancelled

    def _work(self, model: nn.Module, batch: Any, call: Call) -> None:
        if not self._go.get():
            return
        # A model may write to its inputs; the other network needs them as they were.
        batch = tree_map(lambda x: x.clone() if isinstance(x, Tensor) else x, batch)
        try:
            with torch.no_grad(), self._watch:
                self._result = call(model, batch)
            self._there.put(None)
        except BaseException as error:
            self._there.put(error)


class Watch(Counting):
    """Pauses a run at the given weights, with what was added to their outputs a moment before.

    With `after`, a run pauses when the operator has run, else just before, so that a new weight
    is used at once. With `parking`, what the run holds can be moved away while it waits.
    """

    pause: Callable[[Stop], None]

    def __init__(
        self,
        parameters: Parameters,
        keys: Collection[Key],
        shortcuts: Mapping[Key, Moment],
        after: bool,
        parking: Parking | None = None,
    ) -> None:
        super().__init__(parameters)
        self.parking = parking
        self._keys, self._after = keys, after
        self._moments: dict[Moment, list[Key]] = {}
        for key, moment in shortcuts.items():
            self._moments.setdefault(moment, []).append(key)
        self._held: dict[Key, Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        waits = {k: u for k, u in self.count(func, args, kwargs).items() if k in self._keys}
        moment = self.moment
        for key, use in waits.items() if not self._after else ():
            self._stop(key, use, None)
        output = func(*args, **kwargs)
        if self.parking is not None:
            self.parking.note(output)
        first = output[0] if isinstance(output, (tuple, list)) else output
        for key, use in waits.items() if self._after else ():
            self._stop(key, use, use.made(first))
        self.casts(func, args, output)
        for later in self._moments.get(moment, ()):
            self._held[later] = first
        return output

    def _stop(self, key: Key, use: Use, output: Tensor | None) -> None:
        self.pause(Stop(key, use, output, self._held.pop(key, None)))


def twin(model: nn.Module) -> nn.Module:
    """The model once more with the same tensors, so that what its modules note is its own."""
    return duplicate(model, (*model.parameters(), *model.buffers()))


@contextmanager
def running(runs: Iterable[Run]) -> Iterator[None]:
    """Whatever happens inside, no run is left behind."""
    try:
        yield
    finally:
        for run in runs:
            run.cancel()
