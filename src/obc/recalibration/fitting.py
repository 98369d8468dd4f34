"""One weight of the pruned network, fitted to what the original layer put out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from obc.recalibration.account import Fit
from obc.recalibration.alignment import Alignment
from obc.recalibration.forms import Form
from obc.recalibration.lockstep import Stop
from obc.recalibration.logistic import Logistic, Table, choose_logistic, most_rows
from obc.recalibration.recording import Reader
from obc.recalibration.regression import Change, Moments, choose
from obc.recalibration.rows import ROWS, Portion
from obc.recalibration.weighing import weighing
from obc.running.processes import Group

_CHUNK = 1 << 22  # numbers in the rows of one product
_EXACT = 1e-12  # of the variance: what rounding leaves
_SMALL = 1e-2  # of the largest γ/σ: below, a norm hardly lets the layer reach the sum

Write = Callable[[Tensor, Tensor], None]
"""Puts a value into a tensor of the pruned model."""


@dataclass(frozen=True)
class Pair:
    """Original and pruned network, waiting at one weight with one batch.

    Without `part`, the pruned network does not get there, or is not asked.
    """

    portion: Portion
    whole: Stop
    part: Stop | None


class Gathering:
    """Rows that wait until there are enough of them for one product, and the sums of all before.

    Small batches would have each of them add to sums as large as the weight's Gram.
    """

    def __init__(self, groups: int, outputs: int, inputs: int, device: torch.device) -> None:
        self.rows = max(1, _CHUNK // (groups * (inputs + outputs)))
        self._sums = Moments.zero(groups, outputs, inputs, device)
        self._waiting: list[tuple[Tensor, Tensor, Tensor, Tensor | None]] = []
        self._count = 0

    def take(self, u: Tensor, r: Tensor, t: Tensor, weights: Tensor | None) -> None:
        """Take rows in; all of one weight's rows have weights, or none."""
        self._waiting.append((u, r, t, weights))
        self._count += u.shape[1]
        if self._count >= self.rows:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            u = torch.cat([rows[0] for rows in self._waiting], 1)
            r = torch.cat([rows[1] for rows in self._waiting], 1)
            t = torch.cat([rows[2] for rows in self._waiting], 1)
            weights = [rows[3] for rows in self._waiting if rows[3] is not None]
            self._sums.add(u, r, t, torch.cat(weights) if weights else None)
        self._waiting, self._count = [], 0

    def moments(self) -> Moments:
        """The sums over everything."""
        self._flush()
        return self._sums


class Fitting:
    """The regression of one weight: rows are gathered from pairs, then it is solved.

    `weight` is the parameter, in its own type, `bias` what takes an intercept, if there is any;
    with `every`, all positions are rows, and not a draw of them.
    """

    def __init__(
        self,
        reader: Reader,
        alignment: Alignment,
        weight: Tensor,
        bias: Tensor | None,
        every: bool = False,
    ) -> None:
        self.reader, self.alignment, self.every = reader, alignment, every
        form = reader.form
        self.kind = torch.promote_types(weight.dtype, torch.float32)  # what products are taken in
        # Apple's devices have no float64.
        self.device = torch.device("cpu") if weight.device.type == "mps" else weight.device
        sizes = (form.groups, form.outputs, form.inputs)
        kind: type[Gathering | Table] = Table if reader.logits else Gathering
        self.fit, self.held = (kind(*sizes, self.device) for _ in range(2))
        self.intercept = bias is not None or reader.norm is not None
        self.matrix = self._double(form.matrix(reader.weight.inside(weight)[0]))
        self.shift = torch.zeros(sizes[:2], dtype=torch.float64, device=self.device)
        if bias is not None:
            self.shift = self._double(bias).view(sizes[:2])
        statistics = reader.statistics
        if statistics is not None:
            self.matrix = self._double(statistics.scale).view(sizes)
            self.shift = self.shift - self.matrix[..., 0] * self._double(statistics.mean)[:, None]
        self.scale = torch.ones_like(self.shift)
        if reader.norm is not None:
            self.scale = self._double(reader.norm.scale).view(sizes[:2])

    def _double(self, tensor: Tensor) -> Tensor:
        return tensor.detach().to(self.device, torch.float64)

    def gather(self, pair: Pair, seed: int, residual: bool) -> None:
        """Take in the rows of one batch; with `residual`, sums behind the layer are the target."""
        form = pair.whole.use.form()
        narrow = pair.part.use.form() if pair.part is not None else None
        if narrow is not None and (self.reader.routed or narrow.positions != form.positions):
            narrow = None  # other rows were picked there: take what the original reads
        gap = self._gap(pair, form, narrow) if residual and narrow is not None else None
        size = weighing(pair.whole, form) if self.reader.normed else None
        index = torch.arange(form.positions)
        if not self.every:
            most = most_rows(self.reader.form) if self.reader.logits else ROWS
            index = pair.portion.draw(form.positions, form.inputs, seed, most)
        held = pair.portion.held(index, form.positions)
        weight, shift = self.matrix.mT.to(self.kind), self.shift.unsqueeze(1).to(self.kind)
        for sums, chosen in ((self.fit, index[~held]), (self.held, index[held])):
            for part in chosen.split(sums.rows) if len(chosen) else ():
                t = self._outputs(form, pair.whole.output, part, self.alignment.columns)
                u = (
                    narrow.rows(part.to(narrow.input.device))
                    if narrow is not None
                    else self.alignment.rows(form, part.to(form.input.device))
                ).to(self.device, self.kind)
                if gap is not None:
                    t = t + gap(part)
                weights = size(part).to(self.device, self.kind) if size is not None else None
                sums.take(u, torch.baddbmm(t - shift, u, weight, alpha=-1), t, weights)

    def _outputs(self, form: Form, output: Tensor | None, index: Tensor, columns: Tensor) -> Tensor:
        """An output at these positions and channels, [groups, rows, outputs]."""
        assert output is not None
        rows = form.taken(output, index.to(output.device))[:, columns.to(output.device)]
        rows = rows.to(self.device, self.kind)
        return rows.view(len(index), *self.shift.shape).transpose(0, 1)

    def _gap(self, pair: Pair, form: Form, narrow: Form) -> Callable[[Tensor], Tensor] | None:
        """(σ/γ)(s_original − s_pruned) at given positions, s what the output is added to."""
        whole, part = pair.whole.shortcut, pair.part.shortcut if pair.part else None
        if whole is None or part is None or not (form.fits(whole) and narrow.fits(part)):
            return None
        channels = torch.arange(self.shift.numel())
        reaches = self.scale.abs() > _SMALL * self.scale.abs().max()
        factor = torch.where(reaches, 1 / self.scale, 0.0).unsqueeze(1).to(self.kind)

        def gap(index: Tensor) -> Tensor:
            s = self._outputs(form, whole, index, self.alignment.columns)
            return factor * (s - self._outputs(narrow, part, index, channels))

        return gap

    def solve(
        self, group: Group, ridges: Sequence[float], measure: bool = False
    ) -> tuple[Change | None, Fit]:
        """The change that does best on held-out rows, if any does, and the account of it.

        With `measure`, a batch norm takes its statistics anew even if its own error grows: a fit
        that explains a part of the variance leaves less of it, which is least error for this
        layer, but not for those behind it where the layers before were not fitted on each other.
        """
        if isinstance(self.fit, Table) or isinstance(self.held, Table):
            return self._solved_logits(group, ridges)
        fit, held = self.fit.moments().over(group), self.held.moments().over(group)
        name, width, rows = name_of(self.reader), self.reader.form.inputs, int(fit.rows)
        if not rows or int(held.rows) < 2:
            return None, Fit(name, width, rows, note="too few rows to hold any out")
        weights = self.scale.square()
        # Outputs that hardly vary are measured by their size.
        spread = float(torch.maximum(held.spread, _EXACT * held.tt).mul(weights).sum()) or 1.0
        before = float((held.rr * weights).sum()) / spread
        if before < _EXACT:
            return None, Fit(name, width, rows, before, before, note="already exact")
        if self.reader.statistics is not None:
            change, ridge, after = self._measured(fit, held, measure)
        else:
            change, ridge, after = choose(fit, held, self.intercept, self.scale, ridges)
        note = f"only {rows} rows for {width} inputs" if rows < 2 * width else ""
        if change is None:
            note = "no fit does better on held-out rows" + (f"; {note}" if note else "")
        return change, Fit(
            name, width, rows, before, after / spread, ridge, change is not None, note
        )

    def _solved_logits(self, group: Group, ridges: Sequence[float]) -> tuple[Change | None, Fit]:
        """The same by divergence of probabilities, as a share of what the mean of them leaves."""
        fit, held = (
            Logistic(*table.whole(), self.matrix, self.shift, self.intercept, group)
            for table in (self.fit, self.held)
            if isinstance(table, Table)
        )
        name, width = name_of(self.reader), self.reader.form.inputs
        if not fit.rows or held.rows < 2:
            return None, Fit(name, width, fit.rows, note="too few rows to hold any out")
        spread = float(held.spread().sum()) or 1.0
        before = float(held.divergence().sum()) / spread
        if before < _EXACT:
            return None, Fit(name, width, fit.rows, before, before, note="already exact")
        change, ridge, after = choose_logistic(fit, held, ridges)
        note = "no fit does better on held-out rows" if change is None else "logits"
        return change, Fit(
            name, width, fit.rows, before, after / spread, ridge, change is not None, note
        )

    def _measured(
        self, fit: Moments, held: Moments, always: bool
    ) -> tuple[Change | None, None, float]:
        """Mean and variance of a batch norm measured again, if that does better."""
        statistics = self.reader.statistics
        assert statistics is not None
        mean = fit.u / fit.count
        variance = (fit.uu[..., 0] / fit.count - mean.square()).clamp(min=0)
        wider = (self._double(statistics.variance)[:, None] + statistics.eps) / (
            variance + statistics.eps
        )
        slope = self.matrix[..., 0] * wider.sqrt()
        old = self.matrix[..., 0] * self._double(statistics.mean)[:, None]
        change = Change(slope.unsqueeze(-1) - self.matrix, old - slope * mean)
        self._statistics = mean, variance
        error, as_it_is = float(held.error(change).sum()), float(held.rr.sum())
        return (change, None, error) if always or error < as_it_is else (None, None, as_it_is)

    def write(self, change: Change, weight: Tensor, bias: Tensor | None, write: Write) -> None:
        """Put the fitted values into the pruned model."""
        reader = self.reader
        if reader.statistics is not None:
            mean, variance = self._statistics
            write(reader.statistics.mean, mean.reshape(-1))
            write(reader.statistics.variance, variance.reshape(-1))
            return
        view = reader.weight.inside(weight)[0]
        write(view, reader.form.weight(self.matrix + change.weight).reshape(view.shape))
        if bias is not None:
            write(bias, (self.shift + change.bias).reshape(-1))
        elif reader.norm is not None:
            mean = self._double(reader.norm.mean)
            write(reader.norm.mean, mean - change.bias.reshape(-1))


def name_of(reader: Reader) -> str:
    """A weight's name in the account, with the index of the slice that it is."""
    name, index, _ = reader.key
    return name if index < 0 else f"{name}[{index}]"
