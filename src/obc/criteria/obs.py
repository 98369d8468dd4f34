"""Structured Optimal Brain Surgeon: what a channel is worth once those that stay take over."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from obc.criteria.criterion import register
from obc.criteria.jacobian import Jacobian
from obc.criteria.takeover import Reader, eliminated


@register("obs")
class OBS(Jacobian):
    """S_c = Δ_c · Σ_k JC_k / Σ_k Δ_k⁰: for cuts that recalibration follows.

    Channels of a site go one after the other, each time the one whose removal costs its readers
    least after the others have taken over from it (`obc.criteria.takeover`): Δ_c is that cost when
    channel c goes, Δ_k⁰ what each would cost if it went first. Two channels that stand in for each
    other are not both free. How sites compare is told by the Jacobian Criterion with the group as
    one block: if all of a site's channels went alone, they would cost as much as JC says. A site
    whose readers can't be looked at (weights that are shared, grouped, or wider than 4,096) keeps
    JC's scores.

    The order holds for the model as it was scored, so it is scored once, not in every step.

    Args:
        expected: as of "jacobian".
    """

    joint = True

    def __init__(self, expected: bool = False) -> None:
        super().__init__(block="group", expected=expected)

    def together(self, scores: Tensor, readers: Sequence[Reader]) -> Tensor:
        """The scores of a site, [1, size], from JC's and the layers that read it."""
        varying = [reader for reader in readers if reader.varies]
        if not varying:
            return scores
        alone, joint = eliminated(varying)
        total = alone.sum().to(scores.device)
        return scores.sum() * joint.to(scores.device)[None] / total if total > 0 else scores
