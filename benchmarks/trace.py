"""Trace + grouping beside torch-pruning's, and how its time grows with depth."""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

import obc
from benchmarks import _peer
from benchmarks._harness import Timing, peak_memory, race, save, show
from tests.hugging import import_transformers
from tests.vision import import_torchvision

FASTER, DEEPER = 5.0, 2.3


@dataclass
class Subject:
    """A model, its example, and the layer whose output is the model's."""

    name: str
    model: nn.Module
    example: Any
    last: nn.Module

    def ours(self) -> obc.Sites:
        return obc.trace(self.model, self.example)

    def theirs(self) -> list[Any]:
        return _peer.groups(self.model, self.example, [self.last])


def densenet() -> Subject:
    """torchvision's DenseNet-121 on one image of 64 pixels."""
    model = import_torchvision().models.densenet121().eval()
    return Subject("DenseNet-121, 64 px", model, torch.zeros(1, 3, 64, 64), model.classifier)


def decoder(layers: int) -> Subject:
    """Hugging Face's Llama at the size of the 7B model, without memory, on eight tokens."""
    hf = import_transformers()
    config = hf.LlamaConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_attention_heads=32,
        num_key_value_heads=32,
        num_hidden_layers=layers,
        vocab_size=32000,
    )
    with torch.device("meta"):
        model = hf.LlamaForCausalLM(config).eval()
        example = {
            "input_ids": torch.zeros(1, 8, dtype=torch.long),
            # A finished mask: to make its own, transformers reads values that meta does not have.
            "attention_mask": torch.ones(1, 1, 8, 8, dtype=torch.bool),
            "use_cache": False,
        }
    return Subject(f"Llama, {layers} layers, meta", model, example, model.lm_head)


def compare(subject: Subject, rounds: int) -> dict[str, Any]:
    """Both libraries on one model, in turn."""
    times = race({"obc": subject.ours, "torch-pruning": subject.theirs}, rounds)
    sites, groups = subject.ours(), subject.theirs()
    return {
        "model": subject.name,
        "seconds": times,
        "speedup": times["torch-pruning"].best / times["obc"].best,
        "sites": {"obc": len(sites), "torch-pruning": len(groups)},
        "channels": {
            "obc": sum(s.size for s in sites),
            "torch-pruning": sum(len(g[0].idxs) for g in groups),
        },
        "peak bytes": {
            "obc": peak_memory(subject.ours),
            "torch-pruning": peak_memory(subject.theirs),
        },
    }


def deepen(rounds: int, layers: int = 32) -> dict[str, Any]:
    """How the time grows when a decoder gets twice as deep."""
    once, twice = decoder(layers), decoder(2 * layers)
    runs = {
        "obc": (once.ours, twice.ours),
        "torch-pruning": (once.theirs, twice.theirs),
    }
    times = race(
        {f"{who} {n}": run for who, pair in runs.items() for n, run in enumerate(pair, 1)}, rounds
    )
    growth = {who: times[f"{who} 2"].best / times[f"{who} 1"].best for who in runs}
    return {"layers": [layers, 2 * layers], "seconds": times, "growth": growth}


def profile(subject: Subject) -> None:
    """Where our time goes: the library's own functions with what they call, then the costliest."""
    subject.ours()
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(subject.ours)
    stats = pstats.Stats(profiler)
    stats.sort_stats("cumulative").print_stats(r"/obc/", 25)
    stats.sort_stats("tottime").print_stats(15)


def seconds(timing: Timing) -> str:
    """The best, and the median behind it."""
    return f"{timing.best:.2f} ({timing.median:.2f})"


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    options.add_argument("--quick", action="store_true", help="two rounds instead of five")
    options.add_argument("--profile", action="store_true", help="profile our trace, and stop")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    if chosen.profile:
        profile(decoder(32))
        return
    rounds = 2 if chosen.quick else 5
    speed = [compare(make(), rounds) for make in (densenet, partial(decoder, 32))]
    depth = deepen(rounds)
    save("trace", {"speed": speed, "depth": depth, "bars": {"speedup": FASTER, "growth": DEEPER}})
    report(speed, depth)


def report(speed: list[dict[str, Any]], depth: dict[str, Any]) -> None:
    """The tables, with the bars they are held against."""
    show(
        "Trace + grouping: CPU seconds, best (median) of interleaved runs",
        (
            "model",
            "obc",
            "torch-pruning",
            "times faster",
            "bar",
            "sites",
            "groups",
            "MB",
            "MB theirs",
        ),
        [
            (
                s["model"],
                seconds(s["seconds"]["obc"]),
                seconds(s["seconds"]["torch-pruning"]),
                f"{s['speedup']:.2f}",
                f"≥ {FASTER:g}",
                *s["sites"].values(),
                *(f"{b / 1e6:.0f}" for b in s["peak bytes"].values()),
            )
            for s in speed
        ],
    )
    names = [f"{n} layers" for n in depth["layers"]]
    show(
        "Twice as deep: CPU seconds",
        ("", *names, "growth", "bar"),
        [
            (
                who,
                *(seconds(depth["seconds"][f"{who} {n}"]) for n in (1, 2)),
                f"{growth:.2f}",
                f"≤ {DEEPER:g}" if who == "obc" else "",
            )
            for who, growth in depth["growth"].items()
        ],
    )


if __name__ == "__main__":
    main()
