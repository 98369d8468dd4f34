"""`obc.recalibrate`: what stays takes over from what went, layer by layer, in closed form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal

from torch import nn

from obc.errors import ObcError
from obc.recalibration.account import Recalibration
from obc.recalibration.judging import Judge, judged, unseen
from obc.recalibration.lockstep import Call
from obc.recalibration.procedure import Procedure
from obc.recalibration.rows import samples_in
from obc.running.checks import check_batches, check_flag, check_function, check_whole
from obc.running.forward import arguments
from obc.running.offload import at_hand
from obc.search.planner import Calibrating


@at_hand
def recalibrate(
    pruned: nn.Module,
    original: nn.Module,
    batches: Iterable[Any] | Calibrating,
    *,
    call: Call | None = None,
    samples: int = 512,
    source: Literal["pruned", "original", "sums"] | None = None,
    residual: bool | None = None,
    judge: Judge | None = None,
    example: Any = None,
    seed: int = 0,
) -> Recalibration:
    """Fit the weights of a pruned model, in place, to what the original's layers put out.

    Both networks run side by side on the same inputs, front to back. At each weight, with u what
    the pruned network, fitted up to here, reads (patches for a convolution) and t what the
    original layer put out in the kept channels, the weight moves from W₀ to

        W' = W₀ + Cov(t − W₀u, u) (Cov(u) + ρ tr(Cov u)/q · I)⁻¹,   b' = mean(t) − W' mean(u),

    a ridge regression towards the weights as they are, solved in float64. The intercept goes into
    the bias, or off the running mean of the batch norm behind. What only a sigmoid reads is fitted
    to the original's probabilities instead, by logistic regression. One sample in eight is held
    out: it chooses ρ, and whether a fit is kept at all, layer by layer and for the whole network.
    Labels are not needed, unless a `judge` reads them. If anything fails, the model is as it was.

    Args:
        pruned: What `obc.apply` or `obc.load` returned; it remembers its plan.
        original: The model it was cut from, as it was.
        batches: Inputs, as many as `samples` asks for, or a task that has them. Every process
            sees all of them.
        call: `call(model, batch)` runs the model on a batch; by default the first element of a
            tuple or list is its input, and a mapping is its keyword arguments.
        samples: How many samples to use, in whole batches.
        source: "original" takes u from the original network instead, and fits only weights that
            lost inputs; "sums" takes it from the pruned one, at all positions, and fits those,
            the weights that add to a residual sum, to bring the sum back, and scales of norms.
            By default, the task says, or it is "pruned".
        residual: Whether the last layer of a residual branch is to make up for what the shortcut
            lost, too; by default, the task says, or held-out inputs decide between both.
        judge: `judge(model, batches)` gives figures of which more is better, such as precisions:
            the fit is taken back where all of them are lower than the cut's on samples that no
            fit has seen, as many again as `samples`, or those held out where there are no more.
            By default, the task's own; without any, the outputs alone decide.
        example: Traces the original, in place of the one that the plan keeps.
        seed: Chooses the positions at which layers are compared.

    >>> import copy, torch, obc
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> with torch.no_grad():
    ...     _ = net[0].weight[5:].copy_(net[0].weight[:3])  # three neurons stand in for others
    ...     _ = net[0].bias[5:].copy_(net[0].bias[:3])
    >>> plan = obc.Plan.from_kept(obc.trace(net, torch.zeros(1, 4)), {"0": range(5)})
    >>> small = obc.apply(copy.deepcopy(net), plan)
    >>> account = recalibrate(small, net, torch.randn(8, 64, 4))
    >>> account.before > 0.01, account.after < 1e-6
    (True, True)
    """
    if source not in ("pruned", "original", "sums", None):
        raise ObcError(f"source is 'pruned', 'original' or 'sums', not {source!r}")
    if isinstance(batches, Calibrating):
        said = said_by(batches)
        residual = said["residual"] if residual is None else residual
        source, judge = source or said["source"], judge or said["judge"]
        call, batches = call or partial(call_by, batches), batches.calibration()
    check_batches(batches)
    check_whole("samples", samples, 1)
    check_whole("seed", seed)
    if call is not None:
        check_function("call", call)
    if residual is not None:
        check_flag("residual", residual)
    if judge is not None:
        check_function("judge", judge)
    stream = iter(batches)
    chosen = _enough(stream, samples)
    if not chosen:
        raise ObcError("there are no batches to recalibrate with")
    named = partial(_named, call or call_with)
    procedure = Procedure(pruned, original, chosen, named, example, seed)
    fit = partial(procedure.run, source or "pruned", residual)
    if judge is None:
        return fit()
    return judged(pruned, fit, judge, unseen(chosen, _enough(stream, samples)))


def said_by(task: object) -> dict[str, Any]:
    """How a task has its models recalibrated, if it says so: `residual`, `source` and `judge`."""
    return {
        "residual": getattr(task, "residual", None),
        "source": getattr(task, "fitted_on", None),
        "judge": getattr(task, "judge", None),
    }


def call_with(model: nn.Module, batch: Any) -> Any:
    """A model on a batch: a mapping as keyword arguments, else the first of several things."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, (tuple, list)) else batch)


def _named(call: Call, model: nn.Module, batch: Any) -> Any:
    """Errors of the model say that they came with a batch."""
    try:
        return call(model, batch)
    except ObcError:
        raise
    except Exception as error:
        raise ObcError(f"a batch to recalibrate with failed: {error}") from error


def call_by(task: Calibrating, model: nn.Module, batch: Any) -> Any:
    """A model on what its task says are the inputs."""
    args, kwargs = arguments(task.inputs(batch))
    return model(*args, **kwargs)


def _enough(batches: Iterator[Any], samples: int) -> list[Any]:
    """The next batches, until there are enough samples."""
    chosen, count = [], 0
    for batch in batches:
        chosen.append(batch)
        count += samples_in(batch)
        if count >= samples:
            break
    return chosen
