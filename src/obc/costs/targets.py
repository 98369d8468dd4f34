"""What a plan is to reach: a share of the MACs, parameters, channels, memory or time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from torch import Tensor, nn

from obc.costs import latency, memory
from obc.costs.candidates import Candidates
from obc.costs.cost_model import Costs, params_of
from obc.costs.fitted import Fitted
from obc.errors import ObcError, closest
from obc.running import runtimes
from obc.running.checks import check_number

TOLERANCE = 1.005  # a plan may be this much better than its target, and no worse


Price = Callable[[Tensor], Tensor]
"""A cost as a function of kept counts, [rows, sites] to [rows]."""


class Target:
    """A speed-up to reach or a share to keep: `MACs(speedup=2.1)`, `Params(keep=0.5)`.

    >>> MACs(speedup=2).limit(100), Params(keep=0.3).limit(100)
    (50.0, 30.0)
    >>> MACs(speedup=2)
    MACs(speedup=2)
    """

    unit: ClassVar[str]
    measured: bool = False  # on the cut model, since counts do not tell
    round_to: int | None = 1  # where widths stay, if the user does not say; None: as is measured

    def __init__(self, *, speedup: float | None = None, keep: float | None = None) -> None:
        name = type(self).__name__
        if (speedup is None) == (keep is None):
            raise ObcError(f"{name} takes a speed-up or a share to keep: {name}(speedup=2)")
        for what, value in (("speed-up", speedup), ("share to keep", keep)):
            if value is not None:
                check_number(f"{name}: the {what}", value)
        if speedup is not None and not 1 <= speedup < math.inf:
            raise ObcError(f"{name}: a speed-up is 1 or more, not {speedup:g}")
        if keep is not None and not 0 < keep <= 1:
            raise ObcError(f"{name}: the share to keep is above 0 and at most 1, not {keep:g}")
        self.speedup, self.keep = speedup, keep

    @property
    def name(self) -> str:
        """What stands before the equals sign."""
        return self.unit

    @property
    def field(self) -> str:
        """What a plan's costs call it."""
        return self.unit

    def price(self, costs: Costs) -> Price:
        """What to rank and land by: the value, or what stands in for it where it is measured."""
        raise NotImplementedError

    def measure(self, model: nn.Module, example: Any) -> float:
        """The value of a model, for targets that are measured."""
        raise NotImplementedError

    def limit(self, before: float) -> float:
        """The most that may be left of what there was before."""
        if self.keep is not None:
            return before * self.keep
        assert self.speedup is not None
        return before / self.speedup

    def like(self, before: float, value: float) -> str:
        """A target of this kind that this value meets.

        >>> MACs(speedup=2).like(300, 200)
        'macs=1.5x'
        """
        if self.keep is not None:
            return f"{self.name}={math.ceil(value / before * 1e6 - 1e-6) / 1e4:.10g}%"
        return f"{self.name}={math.floor(before / value * 1e4 + 1e-6) / 1e4:.10g}x"

    def __str__(self) -> str:
        if self.keep is not None:
            return f"{self.name}={self.keep * 100:.10g}%"
        return f"{self.name}={self.speedup:.10g}x"

    def __repr__(self) -> str:
        what = f"keep={self.keep!r}" if self.keep is not None else f"speedup={self.speedup!r}"
        return f"{type(self).__name__}({what})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))


class MACs(Target):
    """Multiply-accumulates of one run of the example."""

    unit = "macs"

    def price(self, costs: Costs) -> Price:
        return costs.macs


class Params(Target):
    """Parameters, shared ones counted once; of all layers, or of a part of them.

    `part` is a pattern of parameters' names, or "blocks": the repeated layers of a model, without
    embeddings and heads, which are a fifth of a small language model.

    >>> Params(keep=0.8, part="blocks")
    Params(keep=0.8, part='blocks')
    """

    unit = "params"

    def __init__(
        self, *, speedup: float | None = None, keep: float | None = None, part: str | None = None
    ) -> None:
        super().__init__(speedup=speedup, keep=keep)
        self.part = part

    @property
    def name(self) -> str:
        return self.unit if self.part is None else f"{self.unit}[{self.part}]"

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if self.part is None else f"{text[:-1]}, part={self.part!r})"

    def price(self, costs: Costs) -> Price:
        return costs.params if self.part is None else params_of(costs.tracing, self.part)


class Channels(Target):
    """Channel groups over all sites."""

    unit = "channels"

    def price(self, costs: Costs) -> Price:
        return costs.channels


class Memory(Target):
    """Bytes held at once in a run of the example: parameters, buffers, input and activations."""

    unit = "memory"

    def price(self, costs: Costs) -> Price:
        return memory.predicted_peak(costs.tracing)


class Latency(Target):
    """Seconds for one run of the example on this machine.

    Without a `runtime` every step is timed in eager PyTorch. With one ("torch", "compile",
    "onnxruntime", "openvino") a few dozen cuts are timed there first, a cost model fitted to them
    predicts all others, and what the plan comes to is measured.

    >>> Latency(speedup=1.5, runtime="onnxruntime")
    Latency(speedup=1.5, runtime='onnxruntime')
    """

    unit = "latency"

    def __init__(
        self, *, speedup: float | None = None, keep: float | None = None, runtime: str | None = None
    ) -> None:
        super().__init__(speedup=speedup, keep=keep)
        if runtime is not None:
            runtimes.check(runtime)
        self.runtime, self.measured = runtime, runtime is None
        self.round_to = 8 if runtime is None else None

    @property
    def name(self) -> str:
        return self.unit if self.runtime is None else f"{self.unit}[{self.runtime}]"

    @property
    def field(self) -> str:
        return "seconds"

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if self.runtime is None else f"{text[:-1]}, runtime={self.runtime!r})"

    def price(self, costs: Costs) -> Price:
        if self.runtime is None:
            return costs.macs
        return Fitted(costs, Candidates(costs.tracing, self.runtime))

    def measure(self, model: nn.Module, example: Any) -> float:
        return latency.seconds(model, example)


_KINDS: dict[str, type[Target]] = {
    kind.unit: kind for kind in (MACs, Params, Channels, Memory, Latency)
}
_BRACKETS = {Params.unit: "part", Latency.unit: "runtime"}
_GRAMMAR = re.compile(
    r"\s*(?P<unit>[a-z]+)(\[(?P<part>[^\]]+)\])?\s*=\s*(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<kind>x|%)\s*",
    re.IGNORECASE,
)


def parse(target: str | Target) -> Target:
    """A target from its text.

    >>> parse("macs=2.1x"), parse("params = 50%"), parse("params[blocks]=80%")
    (MACs(speedup=2.1), Params(keep=0.5), Params(keep=0.8, part='blocks'))
    """
    if isinstance(target, Target):
        return target
    match = _GRAMMAR.fullmatch(target) if isinstance(target, str) else None
    if match is None:
        raise ObcError(f"a target looks like 'macs=2.1x' or 'params=50%', not {target!r}")
    unit, number = match["unit"].lower(), float(match["number"])
    if unit not in _KINDS:
        known = ", ".join(_KINDS)
        raise ObcError(f"no target named '{unit}'{closest(unit, _KINDS)}; there are {known}")
    options: dict[str, Any] = {}
    if match["part"] and unit in _BRACKETS:
        options[_BRACKETS[unit]] = match["part"]
    if match["part"] and not options:
        raise ObcError(f"'{target.strip()}': only params[part] and latency[runtime] have brackets")
    amount = {"speedup": number} if match["kind"].lower() == "x" else {"keep": number / 100}
    try:
        return _KINDS[unit](**amount, **options)
    except ObcError as error:
        raise ObcError(f"'{target.strip()}': {error}") from None


def in_runtime(target: str, runtime: str) -> str:
    """A latency target as one that is met in a runtime.

    >>> in_runtime("latency=1.5x", "torch")
    'latency[torch]=1.5x'
    """
    parsed = parse(target)
    if not isinstance(parsed, Latency):
        raise ObcError(f"a runtime is for latency=…, not for {target}")
    return str(Latency(speedup=parsed.speedup, keep=parsed.keep, runtime=runtime))


def runtime_of(target: str) -> str | None:
    """The runtime that a target names, if it names one.

    >>> runtime_of("latency[onnxruntime]=1.5x"), runtime_of("macs=2x")
    ('onnxruntime', None)
    """
    parsed = parse(target)
    return parsed.runtime if isinstance(parsed, Latency) else None


def parse_all(target: str | Target | Sequence[str | Target]) -> list[Target]:
    """One target or several of one unit, in the order given."""
    several: list[Any] = [target]
    if isinstance(target, Sequence) and not isinstance(target, str):
        several = list(target)
    if not several:
        raise ObcError("the list of targets is empty")
    targets = [parse(t) for t in several]
    units = sorted({t.name for t in targets})
    if len(units) > 1:
        raise ObcError(
            f"a list of targets has one unit, so that plans can be nested, not {', '.join(units)}"
        )
    return targets
