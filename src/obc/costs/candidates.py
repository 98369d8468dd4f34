"""A traced model at other widths, timed where it is to run."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from obc.costs.cost_model import narrowed
from obc.errors import ObcError
from obc.running import onnx
from obc.running.difference import difference
from obc.running.forward import evaluating, forward, outputs
from obc.running.processes import Group
from obc.running.runtimes import RUNTIMES, Run, check, onnx_run, seconds
from obc.running.timing import device_of, race
from obc.tracing.tracer import Tracing
from obc.tracing.trial import full

_TURNS, _LEAST = 15, 0.05


class Candidates:
    """Seconds of a model's cuts in a runtime, each beside the whole model in the same minute.

    `whole` are the seconds of the model itself. What else the machine does slows neighbours alike,
    so a cut's time is the whole model's, times the ratio of the two as they took turns.
    """

    def __init__(self, tracing: Tracing, runtime: str) -> None:
        check(runtime)
        self._tracing, self._runtime = tracing, runtime
        self._model = copy.deepcopy(tracing.model).eval()
        self.whole = Group().agreed(seconds([self._model], tracing.example, runtime)[0])
        self._graph = onnx.of_model(self._model, tracing.example) if runtime == _SWAPPED else None
        self._run = self._ready(self._model)

    @torch.no_grad()
    def seconds(self, counts: Sequence[int]) -> float:
        """Of the model with so many channels of each site, the first ones."""
        sites = self._tracing.sites
        kept = {s.name: range(n) for s, n in zip(sites, counts, strict=True) if n < s.size}
        with narrowed(self._tracing, kept, full):
            cut = copy.deepcopy(self._tracing.model).eval()
        run = self._ready(cut)
        with evaluating(cut):
            for _ in range(2):
                run()
            times = race([self._run, run], turns=_TURNS, seconds=_LEAST, device=device_of(cut))
        return Group().agreed(self.whole * min(times[1]) / min(times[0]))

    def _ready(self, model: nn.Module) -> Run:
        example = self._tracing.example
        if self._graph is not None:
            narrow = onnx.with_tensors(self._graph, model)
            if self._same(narrow, model):
                return onnx_run(narrow, example)
            self._graph = None  # its shapes are written into the graph: every cut is exported
        return RUNTIMES[self._runtime](model, example)

    def _same(self, graph: Any, model: nn.Module) -> bool:
        """Whether a graph puts out what the model does."""
        example = self._tracing.example
        try:
            session = onnx.session_of(graph.SerializeToString())
            put = session.run(None, onnx.feed(session, example))
            difference(outputs(forward(model, example)), [torch.from_numpy(x) for x in put])
        except Exception as error:
            if isinstance(error, (KeyboardInterrupt, MemoryError)):
                raise
            return False
        return True


_SWAPPED = "onnxruntime"  # whose graphs take other weights without another export


def ratio(model: nn.Module, whole: nn.Module, example: Any, runtime: str) -> float:
    """A model's time over that of another, as they take turns in a runtime."""
    own, other = seconds([model, whole], example, runtime, turns=40, least=0.5)
    if not other > 0:
        raise ObcError(f"{runtime} takes no time that a clock could measure")
    return Group().agreed(own / other)
