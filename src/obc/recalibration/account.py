"""What a recalibration did, layer by layer."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Fit:
    """One weight: its error on held-out rows before and after, and what became of it.

    Errors are shares of the variance of the original layer's output; of logits, which are fitted to
    probabilities, shares of the divergence that the mean probability leaves. `ridge` is the ρ that
    was chosen; `kept` tells whether the weight was changed, and `note` why not, or what to know.
    """

    name: str
    inputs: int = 0
    rows: int = 0
    before: float | None = None
    after: float | None = None
    ridge: float | None = None
    kept: bool = False
    note: str = ""


@dataclass(frozen=True)
class Recalibration:
    """The account of `obc.recalibrate`.

    `before` and `after` are the errors of the network's own outputs on held-out inputs, as shares
    of their variance; `residual` tells whether residual sums were the targets, `kept` whether the
    model was changed at all. `judged` are the task's figures of the cut and of the fitted model on
    samples that no fit has seen, if it has any.
    """

    fits: tuple[Fit, ...]
    before: float
    after: float
    residual: bool
    kept: bool
    samples: int
    judged: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def __rich__(self) -> Table:
        from rich.table import Table  # drawn only where somebody looks

        table = Table("weight", "before", "after", "ρ", "note")
        for fit in self.fits:
            table.add_row(
                fit.name, _number(fit.before), _number(fit.after), _number(fit.ridge), fit.note
            )
        table.add_row("outputs", _number(self.before), _number(self.after), "", "")
        return table

    def summary(self) -> str:
        """In one line."""
        changed = sum(fit.kept for fit in self.fits)
        if not self.kept and self.judged is not None:
            cut, fitted = (", ".join(map(_number, figures)) for figures in self.judged)
            return (
                f"recalibration: the cut does better on samples that no fit has seen ({cut}, "
                f"recalibrated {fitted}), the model is as it was"
            )
        if not self.kept:
            return "recalibration: no better on held-out inputs, the model is as it was"
        return (
            f"recalibration: {changed} of {len(self.fits)} weights refitted on {self.samples} "
            f"samples; held-out error of the outputs {self.before:.3g} -> {self.after:.3g}"
        )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
