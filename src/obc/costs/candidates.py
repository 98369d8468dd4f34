"""A traced model at other widths, timed where it is to run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from obc.costs.cost_model import narrowed
from obc.running import onnx
from obc.running.forward import evaluating, forward, outputs
from obc.running.modules import duplicate
from obc.running.processes import Group
from obc.running.randomness import kept as kept_state
from obc.running.runtimes import Run, check, onnx_run, ready
from obc.running.timing import device_of, race, relative
from obc.tracing.tracer import Tracing
from obc.tracing.trial import full

_SWAPPED = "onnxruntime"  # whose graphs take other weights without another export


class Candidates:
    """Seconds of a model's cuts in a runtime, each beside the whole model in the same minute.

    `whole` are the seconds of the model itself. What else the machine does slows neighbours alike,
    so a cut's time is the whole model's, times what it takes relative to it as they take turns.
    """

    def __init__(self, tracing: Tracing, runtime: str) -> None:
        check(runtime)
        self._tracing, self._runtime = tracing, runtime
        model = duplicate(tracing.model).eval()
        self._graph = onnx.of_model(model, tracing.example) if runtime == _SWAPPED else None
        self._freed = False  # whether sizes written into the graph have been looked for
        self._run = self._ready(model)
        self.whole = Group().agreed(self._race(model, self._run, 100, 0.5)[0])

    def seconds(self, counts: Sequence[int]) -> float:
        """Of the model with so many channels of each site, the first ones."""
        sites = self._tracing.sites
        kept = {s.name: range(n) for s, n in zip(sites, counts, strict=True) if n < s.size}
        with narrowed(self._tracing, kept, full):
            cut = duplicate(self._tracing.model).eval()
        return self.of(cut, turns=30, least=0.05)

    def of(self, cut: nn.Module, turns: int = 100, least: float = 0.5) -> float:
        """Of a cut of the model; timed for at least so many turns and seconds."""
        return Group().agreed(self.whole * self._race(cut, self._ready(cut), turns, least)[1])

    @torch.no_grad()
    def _race(self, model: nn.Module, run: Run, turns: int, least: float) -> tuple[float, float]:
        """The fastest run of the whole model, and what another takes relative to it."""
        with kept_state(), evaluating(model):
            for _ in range(2):
                self._run()
                run()
            times = race([self._run, run], turns=turns, seconds=least, device=device_of(model))
        return min(times[0]), relative(times[1], to=times[0])

    def _ready(self, model: nn.Module) -> Run:
        """A cut, warm: the exported graph with its tensors, or exported itself where need be."""
        example = self._tracing.example
        if self._graph is None:
            return ready(model, example, self._runtime)
        narrow = onnx.with_tensors(self._graph, model)
        if self._runs(narrow, model):
            return onnx_run(narrow, example)
        exported = onnx.of_model(model, example)
        self._graph = None if self._freed else onnx.freed(self._graph, exported)
        self._freed = True
        return onnx_run(exported, example)

    def _runs(self, graph: Any, model: nn.Module) -> bool:
        """Whether a graph puts out what the model does, in shape: a clock asks for no more, and
        what an export has folded, such as norms into weights, is not in the model's tensors."""
        example = self._tracing.example
        try:
            session = onnx.session_of(graph.SerializeToString())
            put = session.run(None, onnx.feed(session, example))
        except Exception:
            return False
        return [list(x.shape) for x in put] == [
            list(t.shape) for t in outputs(forward(model, example))
        ]
