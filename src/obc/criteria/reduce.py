"""From the scores of a site's members to one score per channel."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from torch import Tensor

from obc.errors import ObcError

AGGREGATORS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda s: s.sum(0),
    "mean": lambda s: s.mean(0),
    "max": lambda s: s.amax(0),
}
NORMALIZERS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda s: s,
    "mean": lambda s: s / s.mean().clamp_min(1e-300),
    "max": lambda s: s / s.amax().clamp_min(1e-300),
}


def reduce(members: Tensor, aggregate: str, normalize: str) -> Tensor:
    """Aggregate [members, size] to [size] and normalise over the site.

    >>> import torch
    >>> reduce(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "sum", "max")
    tensor([0.6667, 1.0000])
    """
    return NORMALIZERS[normalize](AGGREGATORS[aggregate](members))


def check(aggregate: str, normalize: str) -> None:
    """Refuse unknown names, and warn of the one combination that does not work."""
    for name, value, known in (
        ("aggregate", aggregate, AGGREGATORS),
        ("normalize", normalize, NORMALIZERS),
    ):
        if not isinstance(value, str) or value not in known:
            raise ObcError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    if (aggregate, normalize) == ("mean", "mean"):
        warnings.warn("mean aggregation with mean normalisation is known to collapse", stacklevel=3)
