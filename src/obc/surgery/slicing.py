"""The naive cut: the planned channels go out of a model in place, proven or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from obc.errors import ObcError
from obc.plans.example import rebuild
from obc.plans.plan import Plan
from obc.running.caches import empty_caches
from obc.running.difference import Differs
from obc.running.modules import in_double
from obc.running.snapshot import Snapshot, unchanged
from obc.surgery.optimizer import carry_over, check_state
from obc.surgery.record import remember
from obc.surgery.verify import proof
from obc.tracing.narrow import kept_positions, narrow, take
from obc.tracing.sites import Sites
from obc.tracing.tracer import Tracing


@dataclass(frozen=True)
class Cut:
    """The sites that a model was cut by, and the example it was proven on."""

    sites: Sites
    example: Any


def apply(
    model: nn.Module,
    plan: Plan,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    example: Any = None,
) -> nn.Module:
    """Remove what the plan removes, in place, and return the model: `obc.apply`, naively."""
    cut(model, plan, optimizer=optimizer, example=example)
    return model


def cut(
    model: nn.Module,
    plan: Plan,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    example: Any = None,
) -> Cut:
    """Remove what the plan removes, in place, and say by which sites.

    The model is traced, cut and run; its output must be that of the original with the removed
    channels masked. If anything fails, the model is as it was and the error says where. With
    `optimizer`, momentum and Adam buffers are sliced along. `example` replaces the plan's own.

    >>> from obc import trace
    >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> done = cut(net, Plan.from_kept(trace(net, torch.zeros(1, 4)), {"0": [0, 2, 5]}))
    >>> net[0]
    Linear(in_features=4, out_features=3, bias=True)
    """
    Plan.checked(plan).check(model)
    if example is None:
        example = _own_example(model, plan)
    try:
        # The proof below is worth more than a rehearsal, and costs less.
        return _cut(Tracing(model, example, rehearse=False), plan, optimizer)
    except ObcError as error:
        # With one, sites may be others: those that a plan was made for.
        try:
            return _cut(Tracing(model, example), plan, optimizer)
        except ObcError:
            raise error from None


def _cut(tracing: Tracing, plan: Plan, optimizer: torch.optim.Optimizer | None) -> Cut:
    model, example = tracing.model, tracing.example
    _check_sites(tracing.sites, plan)
    kept = kept_positions(model, tracing.sites, plan.kept)
    if optimizer is not None:
        check_state(model, optimizer, kept)
    expected = proof(tracing, plan.kept)
    names: dict[Tensor, str] = {p: n for n, p in model.named_parameters()}
    before = Snapshot(model)

    def narrowed() -> dict[Tensor, Tensor]:
        empty_caches(model, example)  # made from the weights as they were
        return narrow(model, tracing.sites, plan.kept, sliced)

    try:
        new = narrowed()
        try:
            expected.error(model)
        except Differs:
            before.restore()
            if not _right_in_double(model, example, plan):
                raise
            new = narrowed()
    except Exception as error:
        before.restore()
        raise ObcError(f"{error}; {_culprits(tracing, plan)}; the model is as it was") from error
    if optimizer is not None:
        carry_over(model, optimizer, kept, new, names)
    remember(model, plan)
    return Cut(tracing.sites, example)


def _right_in_double(model: nn.Module, example: Any, plan: Plan) -> bool:
    """Whether the same cut is proven in double precision.

    Some networks let rounding grow beyond what a proof allows: large numbers that cancel, as after
    a cut that leaves a decoder in ruins. In double precision a fault is as large as it was, and
    rounding is not.
    """
    if any(p.dtype == torch.float64 or p.is_meta for p in model.parameters()):
        return False
    try:
        exact, inputs = in_double(model, example)
        _cut(Tracing(exact, inputs, rehearse=False), plan, None)
    except Exception:
        return False
    return True


def sliced(tensor: Tensor, kept: dict[int, Tensor]) -> Tensor:
    """The kept part of a parameter or buffer, as what it was: type, gradient, hooks, attributes."""
    part = take(tensor.detach(), kept)
    if not isinstance(tensor, nn.Parameter):
        return part
    new = type(tensor)(part, tensor.requires_grad)
    new.__dict__.update(tensor.__dict__)
    if tensor.grad is not None:
        new.grad = take(tensor.grad, kept)
    new.requires_grad_()  # a frozen parameter may have hooks too, but takes none while frozen
    for hook in (tensor._backward_hooks or {}).values():
        new.register_hook(hook)
    for hook in (tensor._post_accumulate_grad_hooks or {}).values():
        new.register_post_accumulate_grad_hook(hook)
    return new.requires_grad_(tensor.requires_grad)


def _own_example(model: nn.Module, plan: Plan) -> Any:
    if plan.example is None:
        raise ObcError(
            "this plan keeps no example; pass one as apply(model, plan, example=...)",
            section="the-plan",
        )
    first = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return rebuild(plan.example, first.device, first.dtype)


def _check_sites(sites: Sites, plan: Plan) -> None:
    for name, part in plan.sites.items():
        if sites[name].size != part.size:
            raise ObcError(
                f"site '{name}' has {sites[name].size} channels here, {part.size} in the plan",
                section="the-plan",
            )
        if len(part.kept) < sites[name].picked:
            raise ObcError(
                f"site '{name}': the plan keeps {len(part.kept)}, and {sites[name].picked} are "
                "picked each time; keep at least as many",
                section="the-plan",
            )


def _culprits(tracing: Tracing, plan: Plan) -> str:
    """Which sites fail on their own: what to leave out."""
    model, bad = tracing.model, []
    for name, channels in plan.kept.items():
        alone = {name: channels}
        try:
            expected = proof(tracing, alone)
            with unchanged(model):
                narrow(model, tracing.sites, alone, sliced)
                expected.error(model)
        except Exception:
            bad.append(name)
    return f"the cause is in {', '.join(bad)}" if bad else "no single site is the cause"
