"""How much a row counts: an error in a sum that a norm reads is divided by the size of that sum.

In a transformer, a norm of each position (LayerNorm, RMSNorm) reads every residual sum h, so that
an error e in h reaches the layers behind it as e / |h|. Sums differ in size: in many decoders the
first position of a row is a hundred times as long as the others, and least squares of plain errors
would fit the last layer of a branch to that position alone. Rows therefore count by 1/mean(h²), h
the original network's sum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from obc.recalibration.forms import Form
from obc.recalibration.lockstep import Stop

_TINY = 1e-12  # where a sum is zero


def weighing(stop: Stop, form: Form) -> Callable[[Tensor], Tensor] | None:
    """1 / mean(h²) at given positions, h what the output and its shortcut add up to; or None."""
    output, shortcut = stop.output, stop.shortcut
    if output is None or shortcut is None or not form.fits(shortcut):
        return None
    kind = torch.promote_types(output.dtype, torch.float32)

    def at(tensor: Tensor, index: Tensor) -> Tensor:
        return form.taken(tensor, index.to(tensor.device)).to(output.device, kind)

    def weights(index: Tensor) -> Tensor:
        h = at(shortcut, index) + at(output, index)
        return 1 / h.square().mean(-1).clamp(min=_TINY)

    return weights
