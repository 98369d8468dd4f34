"""Quality targets: how much worse than the whole model, or how good, a pruned one may be.

| target | what it allows |
| --- | --- |
| `accuracy-1%` | of a metric in per cent: a fall by one **point**, say from 93.4% to 92.4% |
| `perplexity+5%`, `rmse+2%` | of any other metric: a change by that share of what it was |
| `loss+0.05` | a change by that much |
| `accuracy>=92`, `perplexity<=20` | whatever is at least, or at most, that |

The metric is one of the task's, by name, or by what people call it (`ALIASES`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from obc.errors import ObcError, closest
from obc.tasks.evaluation import Metric

ALIASES = {"accuracy": "top1"}

_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_GRAMMAR = re.compile(
    rf"\s*([a-z]\w*)\s*(?:([+-])\s*{_NUMBER}\s*(%?)|(>=|<=)\s*{_NUMBER}\s*%?)\s*", re.IGNORECASE
)


@dataclass(frozen=True)
class Quality:
    """A quality target as it is written: a change of a metric, or a level.

    >>> Quality.parse("accuracy-1%")
    Quality(metric='accuracy', sign='-', amount=1.0, percent=True)
    >>> str(Quality.parse("perplexity <= 20"))
    'perplexity<=20'
    """

    metric: str
    sign: str  # + or − for a change, >= or <= for a level
    amount: float
    percent: bool = False

    @classmethod
    def parse(cls, text: str) -> Quality:
        """From its text."""
        parts = _GRAMMAR.fullmatch(text)
        if parts is None:
            raise ObcError(
                "a quality target looks like 'accuracy-1%', 'loss+0.05' or 'accuracy>=92', "
                f"not {text!r}"
            )
        name, sign, change, percent, comparison, level = parts.groups()
        if sign is None:
            return cls(name.lower(), comparison, float(level))
        return cls(name.lower(), sign, float(change), bool(percent))

    @staticmethod
    def written(target: object) -> bool:
        """Whether this is a quality target, or the text of one.

        >>> Quality.written("accuracy-1%"), Quality.written("macs=2x")
        (True, False)
        """
        if isinstance(target, str):
            return _GRAMMAR.fullmatch(target) is not None
        return isinstance(target, Quality)

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{self.amount:.10g}{'%' * self.percent}"

    def of(self, metrics: Sequence[Metric]) -> Terms:
        """What it means for one of these metrics."""
        names = [m.name.lower() for m in metrics]
        name = self.metric if self.metric in names else ALIASES.get(self.metric, self.metric)
        if name not in names:
            known = [*names, *(alias for alias, of in ALIASES.items() if of in names)]
            raise ObcError(
                f"{self}: no metric named '{self.metric}'{closest(self.metric, known)}; "
                f"there are {', '.join(known)}",
                section="names",
            )
        terms = Terms(self, names.index(name), metrics[names.index(name)])
        if terms.metric.higher != (self.sign in ("-", ">=")):
            better, right = ("more", "-") if terms.metric.higher else ("less", "+")
            if terms.level is not None:
                right = ">=" if terms.metric.higher else "<="
            raise ObcError(f"{self}: {better} {self.metric} is better; write {self.metric}{right}…")
        return terms


@dataclass(frozen=True)
class Terms:
    """A quality target for one metric of a task, the one at `index`.

    >>> terms = Quality.parse("accuracy-1%").of([Metric("top1", unit="%", label="top-1")])
    >>> print(terms)
    accuracy-1%: top-1 falls by at most 1 point
    >>> terms.limit, terms.loss(before=93.5, after=92.0)
    (1.0, 1.5)
    >>> print(Quality.parse("ppl+5%").of([Metric("ppl", higher=False)]))
    ppl+5%: ppl rises by at most 5% of what it was
    """

    target: Quality
    index: int
    metric: Metric

    @property
    def level(self) -> float | None:
        """What the metric must reach, for targets that say so."""
        return self.target.amount if self.target.sign in (">=", "<=") else None

    @property
    def relative(self) -> bool:
        """Whether the limit is a share of what the metric was: in %, of a metric that is not."""
        return self.target.percent and self.metric.unit != "%"

    @property
    def limit(self) -> float:
        """The largest loss allowed, in the unit of `loss`."""
        return self.target.amount if self.level is None else 0.0

    def loss(self, before: float, after: float) -> float:
        """How much worse: in the metric's unit, in % of what it was, or short of the level."""
        reference = before if self.level is None else self.level
        worse = reference - after if self.metric.higher else after - reference
        if not self.relative:
            return worse
        return 100 * worse / abs(before) if before else math.inf

    def text(self, loss: float) -> str:
        """A loss as people read it.

        >>> Quality.parse("loss+2%").of([Metric("loss", higher=False)]).text(0.5)
        '0.5%'
        """
        shown = f"{loss:.3g}"
        if self.relative:
            return f"{shown}%"
        if self.metric.unit == "%":
            return f"{shown} point{'' if shown == '1' else 's'}"
        return f"{shown}{self.metric.unit}"

    def kept_by(self, loss: float) -> str:
        """The target of this kind that such a loss would keep."""
        loss = math.ceil(loss * 100 - 1e-9) / 100
        if self.level is not None:
            amount = self.level - loss if self.metric.higher else self.level + loss
            return str(Quality(self.target.metric, self.target.sign, amount))
        return str(Quality(self.target.metric, self.target.sign, loss, self.target.percent))

    def __str__(self) -> str:
        name = self.metric.label or self.metric.name
        if self.level is not None:
            least = "at least" if self.metric.higher else "at most"
            return f"{self.target}: {name} is {least} {self.level:.10g}{self.metric.unit}"
        verb = "falls" if self.metric.higher else "rises"
        share = " of what it was" if self.relative else ""
        return f"{self.target}: {name} {verb} by at most {self.text(self.limit)}{share}"
