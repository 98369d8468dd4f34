"""What was cut from a model: the plans applied to it, in order, kept on the model itself."""

from __future__ import annotations

from torch import nn

from obc.plans.plan import Plan

# An ordinary attribute: it is copied with the model and is no part of its state dict.
_ATTRIBUTE = "_obc_plans"


def applied(model: nn.Module) -> tuple[Plan, ...]:
    """The plans applied so far, the first one in the coordinates of the original model."""
    return tuple(getattr(model, _ATTRIBUTE, ()))


def remember(model: nn.Module, plan: Plan) -> None:
    """Add a plan that has just been applied; one that removes nothing leaves no trace."""
    if any(len(site.kept) < site.size for site in plan.sites.values()):
        setattr(model, _ATTRIBUTE, (*applied(model), plan))


def forget(model: nn.Module) -> None:
    """Leave no plan on a model, for files that are read where there is no obc."""
    model.__dict__.pop(_ATTRIBUTE, None)
