"""Joint redundancy: what a channel is worth once others have gone and what stays has taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from obc.criteria.criterion import register
from obc.criteria.jacobian import Jacobian
from obc.criteria.takeover import Place, eliminated


@register("redundancy")
class Redundancy(Jacobian):
    """S_c = Δ_c · Σ_k JC_k / Σ_k Δ_k⁰: structured OBS on the scale of the Jacobian Criterion.

    A site's channels go in thought one by one, each time the one that raises the least-squares
    error of its readers least after those that stay have taken over (`obc.criteria.takeover`).
    Δ_c is that cost when the turn of channel c comes, Δ_k⁰ what each would cost if it went first;
    so of two channels that stand in for each other only one is cheap. How sites compare is told by
    the criterion that sees the loss: removing each channel of a site alone costs, in sum, what JC
    with the group as one block says. A site whose readers can't be looked at (weights that are
    shared, grouped, or wider than 4,096) keeps JC's scores.

    Made for cuts that recalibration follows. The order is that of a whole cut, so a planning run
    scores once, not in every step.

    Args:
        expected: as of "jacobian".
    """

    joint = True

    def __init__(self, expected: bool = False) -> None:
        super().__init__(block="group", expected=expected)

    def together(
        self, scores: Mapping[str, Tensor], places: Mapping[str, Sequence[Place]]
    ) -> dict[str, Tensor]:
        worth = {site: float(scores[site].sum()) for site in places}
        costs = eliminated(places, worth)
        # Where nothing varies, nothing tells channels apart but JC.
        known = {s: c[None].to(scores[s].device) for s, c in costs.items() if bool(c.any())}
        return {**scores, **known}
