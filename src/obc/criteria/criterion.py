"""What a criterion is: a number for each structural parameter, from its weights and evidence.

A criterion of your own takes a dozen lines:

>>> @register("gradient_size")
... class GradientSize(Criterion):
...     evidence = "gradient"
...
...     def measure(self, part, w, g):
...         return g.abs().sum(1)
>>> make("gradient_size").evidence
'gradient'
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from obc.criteria.structure import Part
from obc.criteria.takeover import Place
from obc.errors import ObcError, closest

Evidence = Literal["none", "product", "gradient", "square"]


class Criterion:
    """Base of all criteria.

    `evidence` says what is gathered for each row of J: "none", the "product" w . g of each
    structural parameter, its whole "gradient", or the "square" of single samples' gradients,
    summed. A row is the gradient of one batch's mean loss, or with `per_sample` of one sample's.
    With `joint`, scores say in which order channels go, one after the other: a planning run then
    scores once, and `together` has a look at the layers that read them.
    """

    evidence: ClassVar[Evidence] = "none"
    joint: ClassVar[bool] = False
    per_sample: bool = False

    def measure(self, part: Part, w: Tensor, e: Tensor) -> Tensor:
        """S(w_m) of one structural parameter for each channel of its site, [size].

        `w` is [size, d]. Gradients and squares have that shape too; products are
        [rows, size, tensors], one for each tensor of the part. Batches are summed by the caller.
        """
        raise TypeError(f"{type(self).__name__} needs a measure(part, w, e)")

    def site(self, parts: list[tuple[Part, Tensor, Tensor]]) -> Tensor:
        """What one row adds for the structural parameters of a site, [members, size]."""
        return torch.stack([self.measure(*part) for part in parts])

    def scores(self, sums: Tensor, rows: int) -> Tensor:
        """The scores of a site, [members, size], from its sums over so many rows: these sums."""
        return sums

    def together(
        self, scores: Mapping[str, Tensor], places: Mapping[str, Sequence[Place]]
    ) -> dict[str, Tensor]:
        """Scores of all sites, [members, size], from those of single channels and their readers."""
        return dict(scores)


_CRITERIA: dict[str, type[Criterion]] = {}


def register(name: str) -> Callable[[type[Criterion]], type[Criterion]]:
    """Make a criterion known by name."""

    def keep(kind: type[Criterion]) -> type[Criterion]:
        _CRITERIA[name] = kind
        return kind

    return keep


def names() -> list[str]:
    """All criteria that are known by name."""
    return sorted(_CRITERIA)


def make(criterion: str | Criterion, **options: Any) -> Criterion:
    """A criterion by name with its options, or as it is."""
    if isinstance(criterion, Criterion):
        if options:
            raise ObcError(f"options {sorted(options)} go to the criterion's own constructor")
        return criterion
    if not isinstance(criterion, str):
        raise ObcError(f"criterion is a name or an obc.Criterion, not {criterion!r}")
    if criterion not in _CRITERIA:
        raise ObcError(
            f"no criterion named '{criterion}'{closest(criterion, _CRITERIA)}; "
            f"there are {', '.join(names())}",
            section="names",
        )
    try:
        return _CRITERIA[criterion](**options)
    except TypeError as error:
        raise ObcError(f"criterion '{criterion}': {error}") from None
