"""Does a criterion that knows of joint redundancy choose better channels for recalibration?

Structured OBS over a whole cut: channels go one at a time, each time the one whose removal raises
the least-squares error of its readers least per MAC saved, after the channels that stay have taken
over (`obc.criteria.takeover` has the step). What makes errors of different readers comparable is
the `SCALES`; the last of them is `criterion="redundancy"`, but for costs, which here are those of
the network after each single removal. Judged beside group JC ÷ cost by accuracy after
recalibration:

    python -m benchmarks.redundancy --networks digits --seeds 3
    python -m benchmarks.redundancy --networks resnet20_padded --cifar FOLDER --weights FOLDER
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import obc
from benchmarks._curves import Data, accuracy, loss, points, recalibrated
from benchmarks._harness import CONSOLE, Cells
from benchmarks._networks import Folders, network
from obc.criteria.takeover import RIDGE, Reader

# "share": of the variance of the reader's output. "fisher": an output's error counts by its squared
# gradient, of single samples, summed over positions. "jacobian": a site's errors are scaled so
# that removing each of its channels alone costs, in sum, what group JC says.
SCALES = ("share", "fisher", "jacobian")
BASE = "group JC ÷ cost"
SAMPLES = 512


class Layers:
    """Of each convolution and linear layer: MACs of one pair of channels, and who owns which."""

    def __init__(self, model: nn.Module, sites: obc.Sites, example: Tensor) -> None:
        self.layers = {
            n: m for n, m in model.named_modules() if isinstance(m, (nn.Conv2d, nn.Linear))
        }
        self.pair: dict[str, int] = {}

        def note(name: str, layer: nn.Module) -> Any:
            def hook(_: nn.Module, __: Any, out: Tensor) -> None:
                taps = layer.weight[0, 0].numel()
                self.pair[name] = taps * (out[0, 0].numel() if out.ndim > 2 else 1)

            return layer.register_forward_hook(hook)

        hooks = [note(n, m) for n, m in self.layers.items()]
        with torch.no_grad():
            model(example)
        for handle in hooks:
            handle.remove()
        self.counts = {n: list(m.weight.shape[1::-1]) for n, m in self.layers.items()}  # in, out
        self.places: dict[str, list[tuple[str, int, Tensor]]] = {
            site.name: [
                (m.layer, 0 if m.role == "in" else 1, m.index[:, 0])
                for m in site.members
                if m.param == "weight" and m.role in ("in", "out")
            ]
            for site in sites
        }

    def macs(self) -> int:
        return sum(self.pair[n] * a * b for n, (a, b) in self.counts.items())

    def saved(self, site: str) -> float:
        """MACs that go with one channel of a site."""
        return sum(self.pair[n] * self.counts[n][1 - side] for n, side, _ in self.places[site])

    def drop(self, site: str) -> None:
        for name, side, _ in self.places[site]:
            self.counts[name][side] -= 1


def moments(model: nn.Module, layers: Layers, data: Data) -> dict[str, tuple[Tensor, Tensor]]:
    """The covariance of what each layer reads, and its outputs' squared gradients in sum."""
    names = layers.layers
    first = {n: torch.zeros(m.weight.shape[1]).double() for n, m in names.items()}
    second = {
        n: torch.zeros(m.weight.shape[1], m.weight.shape[1]).double() for n, m in names.items()
    }
    count = dict.fromkeys(names, 0)
    gradients = {n: torch.zeros(m.weight.shape[0]).double() for n, m in names.items()}

    def square(name: str, gradient: Tensor) -> None:
        gradients[name] += gradient.double().square().transpose(0, 1).flatten(1).sum(1)

    def note(name: str, layer: nn.Module) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
            rows = inputs[0].detach().transpose(0, 1).flatten(1).double()
            first[name] += rows.sum(1)
            second[name] += rows @ rows.T
            count[name] += rows.shape[1]
            out.register_hook(lambda g: square(name, g))

        return layer.register_forward_hook(hook)

    handles = [note(n, m) for n, m in names.items()]
    x, y = (part[:SAMPLES] for part in data.train)
    for a, b in zip(x.split(64), y.split(64), strict=True):
        (loss(model, (a, b)) * len(a)).backward()
    for handle in handles:
        handle.remove()
    model.zero_grad()
    found = {}
    for name in names:
        mean = first[name] / count[name]
        covariance = second[name] / count[name] - torch.outer(mean, mean)
        found[name] = covariance, gradients[name] / len(x)
    return found


def order(
    model: nn.Module, sites: obc.Sites, data: Data, scale: str, speedups: Sequence[float]
) -> Iterator[obc.Plan]:
    """The channels that stay at each speed-up."""
    layers = Layers(model, sites, data.test[0][:1])
    found = moments(model, layers, data)
    readers, unit = {}, {}
    for name in {n for places in layers.places.values() for n, side, _ in places if side == 0}:
        weight, (covariance, outputs) = layers.layers[name].weight.detach().double(), found[name]
        columns = weight.flatten(2) if weight.ndim > 2 else weight.unsqueeze(2)  # of all taps
        if scale == "fisher":
            columns = columns * outputs.sqrt()[:, None, None]
        columns = columns.transpose(0, 1).flatten(1)
        readers[name] = Reader(columns, covariance)
        variance = float(((columns @ columns.T) * covariance).sum())
        unit[name] = variance if scale == "fisher" else 1.0  # a reader's errors are shares of it

    def increase(site: str) -> Tensor:
        parts = [
            unit[n] * readers[n].increase(at[:, None])
            for n, side, at in layers.places[site]
            if side == 0
        ]
        return torch.stack(parts).sum(0)

    factor = dict.fromkeys(layers.places, 1.0)
    if scale == "jacobian":
        scores = obc.score(model, sites, data.batches(32)[:10], loss, block="group")
        factor = {n: float(scores[n].sum() / increase(n).sum()) for n in factor}
    now = {name: factor[name] * increase(name) for name in factor}
    kept = {site.name: set(range(site.size)) for site in sites}
    whole = layers.macs()
    for speedup in speedups:
        while layers.macs() > whole / speedup:
            _, site, channel = min(
                (float(now[s][c]) / layers.saved(s), s, c)
                for s, own in kept.items()
                if len(own) > 1
                for c in own
            )
            kept[site].discard(channel)
            layers.drop(site)
            touched = {n for n, side, _ in layers.places[site] if side == 0}
            for name, side, at in layers.places[site]:
                if side == 0:
                    readers[name].remove(at[[channel]])
            for other, places in layers.places.items():
                if touched & {n for n, side, _ in places if side == 0}:
                    now[other] = factor[other] * increase(other)
        yield obc.Plan.from_kept(sites, {n: sorted(own) for n, own in kept.items()})


def chosen(model: nn.Module, data: Data, scale: str, speedups: Sequence[float]) -> dict[str, Any]:
    """Accuracy at each speed-up, as cut and recalibrated."""
    sites = obc.trace(model, data.test[0][:1])
    start, at = time.process_time(), []
    plans = list(order(model, sites, data, scale, speedups))
    seconds = time.process_time() - start
    for speedup, plan in zip(speedups, plans, strict=True):
        pruned = obc.apply(copy.deepcopy(model), plan)
        point = {"speedup": speedup, "cut": accuracy(pruned, data.test)}
        at.append({**point, **recalibrated(pruned, model, data, SAMPLES)})
    return {"planning seconds": seconds, "points": at}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="+", default=["digits"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--speedups", nargs="+", type=float, default=[2.0, 4.0, 8.0])
    parser.add_argument("--ways", nargs="+", default=[BASE, *SCALES], choices=[BASE, *SCALES])
    parser.add_argument("--step", type=float, default=0.02, help="p of group JC")
    for name in ("cifar", "weights"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders = Folders(options.cifar, None, None, options.weights, None)
    cells = Cells("redundancy", {"samples": SAMPLES, "ridge": RIDGE})
    for name in options.networks:
        for seed in range(options.seeds):
            model, data = network(name, seed, folders)
            for way in options.ways:
                key = f"{name}|{way}|{seed}"
                if key in cells.results:
                    continue
                if way == BASE:
                    settings = {"rows": 10, "step": options.step, "seed": seed}
                    settings |= {"block": "group", "rank": "score/cost"}
                    cell = points(
                        *(model, data, data.batches(32), settings, options.speedups, SAMPLES)
                    )
                else:
                    cell = chosen(model, data, way, options.speedups)
                cells.add(key, {"whole": accuracy(model, data.test), **cell})
                CONSOLE.print(key, [(p["cut"], p["recalibrated"]) for p in cell["points"]])


if __name__ == "__main__":
    main()
