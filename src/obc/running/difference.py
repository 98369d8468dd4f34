"""How far the outputs of one model are from those of another."""

from __future__ import annotations

import torch
from torch import Tensor

from obc.errors import ObcError


def difference(reference: list[Tensor], found: list[Tensor]) -> float:
    """The largest relative error over all outputs; an error if it is more than rounding."""
    if [t.shape for t in reference] != [t.shape for t in found]:
        raise ObcError(
            f"the pruned model puts out {[tuple(t.shape) for t in found]} "
            f"instead of {[tuple(t.shape) for t in reference]}"
        )
    worst = 0.0
    for a, b in zip(reference, found, strict=True):
        if a.is_meta or not a.is_floating_point() or not a.numel():
            continue
        finite = torch.isfinite(a)
        error = _error(a[finite].double(), b[finite].double())
        limit = torch.finfo(a.dtype).eps ** 0.5
        if not error <= limit or not torch.equal(finite, torch.isfinite(b)):
            raise ObcError(f"the pruned model differs from the masked original by {error:.2g}")
        worst = max(worst, error)
    return worst


def _error(a: Tensor, b: Tensor) -> float:
    """Each number is measured by itself and by the middle one, so that no giant hides the rest."""
    if not a.numel():
        return 0.0
    size = a.abs()
    middle = size[size > 0].median() if (size > 0).any() else size.new_tensor(1e-30)
    return float(((a - b).abs() / (size + middle)).max())
