"""Perplexity of a decoder without tuning: criteria, shares of its blocks, cut and recalibrated.

Each criterion scores the whole model once on a draw of calibration rows; from these scores the
model is cut to each share of the parameters of its blocks, evaluated, recalibrated and evaluated
again. Cells are written one by one, what has a goal and what is cheap first, and those that the
result file has are not run again:

    python -m benchmarks.language FOLDER --train valid.txt --test test.txt --tale moby-dick.txt

With `--speed`, tokens per second are measured instead, of the whole model and of a few cuts.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import obc
from benchmarks._harness import CONSOLE, RESULTS, commit, save, show
from obc.criteria.criterion import make
from obc.criteria.score import Scorer
from obc.data.tokens import read_text
from obc.models import resolve
from obc.running.modules import blocks_of
from obc.search.choice import chosen
from obc.tasks import Language
from obc.tasks.language import load_tokenizer
from obc.tasks.recalibration import recalibrate_for

TAIL = 5_000  # letters of the tale
BARS = (0.2, 0.3)  # shares of which a goal is set, evaluated on more windows


class Cell(NamedTuple):
    """One cut of the model; `way` is how: free widths, uniform ones, or with FLAP's bias."""

    criterion: str
    way: str
    draw: int
    share: float

    def __str__(self) -> str:
        return f"{self.criterion}, {self.way}, {self.draw}, {self.share:.0%}"


WAYS = (
    *(("jacobian", "free"), ("l1", "free"), ("random", "free"), ("jacobian", "bias")),
    *(("jacobian", "uniform"), ("taylor", "free")),
)
# With rows of one sample, Σ (w g)² over rows is Σ w² g² over samples: Taylor's cells are Hessian's.
# Both were run at all shares of one draw, and recalibrated at 20%, with the same figures.
SAME = {"taylor": "hessian"}
SHARES = (0.3, 0.2, 0.1, 0.05, 0.15, 0.25)
CELLS = [Cell(name, way, draw, share) for draw in (0, 1) for name, way in WAYS for share in SHARES]


def goal(cell: Cell) -> bool:
    return cell[:2] == WAYS[0] and cell.share in BARS


def steps() -> list[tuple[Cell, bool]]:
    """Cells, and whether to recalibrate: a run that is stopped is to leave a table."""
    dear = [c for c in CELLS if c.criterion == "taylor"]
    cheap = [c for c in CELLS if c not in dear]
    fitted = [c for c in CELLS if c.way != "bias"]
    main = [c for c in fitted if c[:2] == WAYS[0]]
    fitted.sort(key=lambda c: (c.draw, BARS.index(c.share) if c.share in BARS else len(BARS)))
    return [
        *((c, True) for c in main if goal(c)),
        *((c, False) for c in cheap if c.draw == 0),
        *((c, True) for c in main if c.draw == 0),
        *((c, False) for c in dear if c.draw == 0),
        *((c, True) for c in fitted if c.draw == 0 and c.share in BARS),
        *((c, False) for c in (*cheap, *dear)),
        *((c, True) for c in fitted),
    ]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="a plain folder of Hugging Face")
    parser.add_argument("--train", type=Path, required=True, help="a text to calibrate on")
    parser.add_argument("--test", type=Path, required=True, help="WikiText-2's, to evaluate on")
    parser.add_argument("--tale", type=Path, required=True, help="a text; its end is evaluated on")
    parser.add_argument("--windows", type=int, default=1, help="of 2,048 tokens, of the test text")
    parser.add_argument("--more", type=int, default=4, help="windows for shares with a goal")
    parser.add_argument("--rows", type=int, default=32, help="to score with")
    parser.add_argument(
        "--samples", type=int, default=64, help="rows to recalibrate on; half more with a goal"
    )
    parser.add_argument("--work", type=Path, default=Path("work"), help="keeps scores for later")
    parser.add_argument("--speed", action="store_true", help="tokens per second, nothing else")
    parser.add_argument("--show", action="store_true", help="only print what there is")
    return parser.parse_args()


class Table:
    """The result file: points by cell."""

    def __init__(self, protocol: dict[str, Any]) -> None:
        path = RESULTS / "language.json"
        old = json.loads(path.read_text()) if path.is_file() else {}
        same = old.get("protocol") == protocol
        self.protocol, self.points = protocol, dict(old.get("points", {})) if same else {}

    def add(self, key: str, point: dict[str, Any]) -> None:
        self.points[key] = {**point, "commit": commit()}
        save("language", {"protocol": self.protocol, "points": self.points})
        CONSOLE.print(key, point)

    def show(self) -> None:
        whole = self.points["whole"]
        rows = []
        for key, p in self.points.items():
            if "cut" not in p:
                continue
            cut = p["cut"]
            figures = [cut["perplexity"], cut["tale"], *([math.nan] * 3)]
            if "recalibrated" in p:
                fitted = p["recalibrated"]
                excess = [x["loss"] - whole["loss"] for x in (fitted, cut)]
                figures[2:] = [fitted["perplexity"], fitted["tale"], excess[0] / excess[1]]
            told = ("" if math.isnan(x) else f"{x:.2f}" for x in figures)
            rows.append((key, *told, f"{p['seconds']:.0f}"))
        CONSOLE.print(
            *(f"{name}: {text}" for name, text in self.protocol.items()),
            f"whole: {whole['perplexity']:.2f}, tale {whole['tale']:.2f}",
            sep="\n",
        )
        show(
            "perplexity without tuning; excess: of log-perplexity, recalibrated ÷ cut",
            ("cell", "cut", "tale", "recalibrated", "tale", "excess", "CPU seconds"),
            rows,
        )


class Study:
    """A model, its texts, and the scores of each criterion and draw."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        test = read_text(options.test, "blank")
        texts = {"name": "WikiText-2 test", "joining": "lines joined by blank lines"}
        train, tokenizer = read_text(options.train, "blank"), load_tokenizer(options.model)
        self.task, self.more = (
            Language(train, test, tokenizer=tokenizer, windows=windows, **texts)
            for windows in (options.windows, options.more)
        )
        # WikiText's valid text has it in place of rare words, its test text does not.
        self.clean = Language(train.replace(" <unk>", ""), test, tokenizer=tokenizer)
        tale = read_text(options.tale)[-TAIL:]
        self.tale = Language(
            tale,
            tale,
            tokenizer=tokenizer,
            length=1024,
            windows=1,
            name=f"the last {TAIL:,} letters",
        )
        self.length = next(iter(self.task.calibration(1)))[0].shape[1]
        self.model: Any = resolve(f"hf:{options.model}", pretrained=True).eval()
        self.sites = obc.trace(self.model, self.task.example())
        self.open = chosen(self.sites, ("ffn", "heads"))
        self._scores: dict[tuple[str, int], tuple[dict[str, Tensor], float]] = {}
        prefix = f"{blocks_of(self.model)}."
        named = self.model.named_parameters()
        self.blocks = sum(p.numel() for n, p in named if n.startswith(prefix))

    def rows(self, count: int, draw: int, size: int) -> list[Any]:
        torch.manual_seed(draw)
        return list(islice(self.task.calibration(size), -(-count // size)))

    def measured(self, model: nn.Module, goal: bool) -> dict[str, float]:
        values = self.task.evaluate(model).named()
        if goal:
            values["more"] = self.more.evaluate(model).named()["loss"]
        return {**values, "tale": self.tale.evaluate(model).named()["perplexity"]}

    def scores(self, name: str, draw: int) -> tuple[dict[str, Tensor], float]:
        """Of each channel, and the seconds that they took."""
        file = self.options.work / f"{name}-{draw}-{self.options.rows}.safetensors"
        if (name, draw) not in self._scores and not file.is_file():
            start = time.process_time()
            criterion = make(name, **({"seed": draw} if name == "random" else {}))
            scorer = Scorer(self.model, self.sites, self.task.loss, criterion, names=self.open)
            rows = self.rows(self.options.rows, draw, 1)
            totals = {n: t.sum(0) for n, t in scorer.totals(rows).items() if n in self.open}
            seconds = torch.tensor(time.process_time() - start)
            self.options.work.mkdir(parents=True, exist_ok=True)
            save_file({**totals, "seconds": seconds}, file)
        if (name, draw) not in self._scores:
            totals = load_file(file)
            self._scores[name, draw] = totals, float(totals.pop("seconds"))
        return self._scores[name, draw]

    def cost(self, name: str) -> int:
        """Parameters that one channel of a site holds."""
        site = self.sites[name]
        parameters = dict(self.model.named_parameters())
        return sum(
            m.index.shape[1] * parameters[m.name].numel() // parameters[m.name].shape[m.dim]
            for m in site.members
        )

    def kept(self, cell: Cell) -> dict[str, list[int]]:
        """The channels that stay: the lowest scores by parameter go until the share is reached."""
        scores, _ = self.scores(cell.criterion, cell.draw)
        costs = {name: self.cost(name) for name in scores}
        places = [
            (value / costs[name], name, channel)
            for name, values in scores.items()
            for channel, value in enumerate(values.tolist())
        ]
        if cell.way == "uniform":  # all layers lose equally many inner channels, and no heads
            ffn = [n for n in scores if not self.sites[n].heads]
            ranks = {n: scores[n].argsort().argsort().tolist() for n in ffn}
            places = [(float(ranks[n][c]), n, c) for _, n, c in places if n in ranks]
        gone: dict[str, set[int]] = {}
        left = cell.share * self.blocks
        for _, name, channel in sorted(places):
            if left <= 0:
                break
            if len(gone.get(name, ())) < self.sites[name].size - 1:
                gone.setdefault(name, set()).add(channel)
                left -= costs[name]
        return {n: [c for c in range(self.sites[n].size) if c not in g] for n, g in gone.items()}

    def run(self, cell: Cell, table: Table, fit: bool) -> None:
        kept, options = self.kept(cell), self.options
        _, scoring = self.scores(cell.criterion, cell.draw)
        start = time.process_time()
        try:
            small = obc.apply(copy.deepcopy(self.model), obc.Plan.from_kept(self.sites, kept))
        except obc.ObcError as error:  # a model in ruins lets rounding grow beyond what a cut may
            CONSOLE.print(f"{cell} left out: {error}")
            return
        if cell.way == "bias":
            self._compensate(small, kept, cell.draw)
        seconds = scoring + time.process_time() - start
        heads = sum(self.sites[n].size - len(k) for n, k in kept.items() if self.sites[n].heads)
        point = {**table.points.get(str(cell), {}), "KV groups gone": heads}
        if "cut" not in point:
            point["cut"] = self.measured(small, goal(cell))
        if fit:
            start, samples = time.process_time(), options.samples
            samples += samples // 2 if goal(cell) else 0
            account = recalibrate_for(
                self.clean, small, self.model, samples=samples, batch_size=1, seed=cell.draw
            )
            point["recalibration"] = time.process_time() - start
            point["rows"] = f"{samples} of {self.length} tokens"
            point["held-out error"] = [account.before, account.after]
            point["recalibrated"] = self.measured(small, goal(cell))
            seconds += point["recalibration"]
        table.add(str(cell), {**point, "seconds": seconds})
        if cell.criterion in SAME:
            other = cell._replace(criterion=SAME[cell.criterion])
            table.add(str(other), {**point, "same as": cell.criterion, "seconds": seconds})

    def speeds(self) -> dict[str, dict[str, float]]:
        """Tokens per second of the whole model and of cuts by JC, taking turns; best of three."""
        models = {"whole": self.model}
        for way, share in (("free", 0.1), ("free", 0.2), ("free", 0.3), ("uniform", 0.2)):
            plan = obc.Plan.from_kept(self.sites, self.kept(Cell("jacobian", way, 0, share)))
            models[f"{way}, {share:.0%}"] = obc.apply(copy.deepcopy(self.model), plan)
        best: dict[str, dict[str, float]] = {name: {} for name in models}
        for _ in range(3):
            for name, model in models.items():
                for what, value in self.task.speed(model).items():
                    best[name][what] = max(value, best[name].get(what, 0.0))
        return best

    def _compensate(self, small: Any, kept: Mapping[str, list[int]], draw: int) -> None:
        """FLAP's bias: what removed inputs put out on average is added to the layer's output.

        Y. An et al., Fluctuation-based Adaptive Structured Pruning for Large Language Models.
        """
        readers = {
            m.layer: (m, kept[s.name])
            for s in self.sites
            if s.name in kept
            for m in s.members
            if m.role == "in"
        }
        with _means(self.model, readers) as means, torch.no_grad():
            for batch in self.rows(self.options.rows, draw, 4):
                self.task.loss(self.model, batch)
        for layer, (member, stay) in readers.items():
            weight = self.model.get_submodule(layer).weight.detach()
            gone = torch.ones(weight.shape[1], dtype=torch.bool)
            gone[member.index[stay].reshape(-1)] = False
            mean = means[layer][0] / means[layer][1]
            small.get_submodule(layer).bias = nn.Parameter(weight[:, gone] @ mean[gone])


@contextmanager
def _means(model: nn.Module, layers: Mapping[str, Any]) -> Iterator[dict[str, tuple[Tensor, int]]]:
    """Sums and counts of what layers read, while inside."""
    sums: dict[str, tuple[Tensor, int]] = {}

    def hook(layer: str) -> Callable[[nn.Module, Any], None]:
        def add(_: nn.Module, inputs: Any) -> None:
            x = inputs[0].detach().flatten(0, -2)
            total, count = sums.get(layer, (torch.zeros(x.shape[1]), 0))
            sums[layer] = total + x.sum(0), count + len(x)

        return add

    hooks = [model.get_submodule(n).register_forward_pre_hook(hook(n)) for n in layers]
    try:
        yield sums
    finally:
        for one in hooks:
            one.remove()


def main() -> None:
    options = arguments()
    torch.set_num_threads(1)
    study = Study(options)
    protocol = {
        "evaluation": study.task.protocol,
        "goals": study.more.protocol,
        "tale": study.tale.protocol,
        "calibration": f"{options.rows} rows of {study.length} tokens of {options.train.name} "
        "score the whole model once, rows of the same text without its <unk> recalibrate; ranked "
        "by score ÷ parameters, layers of a channel as separate terms; share of the blocks' "
        "parameters; one thread",
        "model": options.model.name,
    }
    table = Table(protocol)
    if options.speed:
        return table.add("speed", study.speeds())
    if options.show:
        return table.show()
    if "whole" not in table.points:
        table.add("whole", study.measured(study.model, True))
    for cell, fit in steps():
        if ("recalibrated" if fit else "cut") not in table.points.get(str(cell), ()):
            study.run(cell, table, fit)
    table.show()
    return None


if __name__ == "__main__":
    main()
