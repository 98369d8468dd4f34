"""Trace + grouping beside torch-pruning's, and how the time grows with depth."""

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
from benchmarks._harness import CONSOLE, Timing, peak_memory, race, save, show
from tests.hugging import import_transformers
from tests.vision import import_torchvision

BARS = {"times faster": 5.0, "growth from 32 to 64 layers": 2.3}
LIBRARIES = ("obc", "torch-pruning")


@dataclass
class Subject:
    """A model, its example, and the layer whose output is the model's."""

    name: str
    model: nn.Module
    example: Any
    last: nn.Module

    def trace(self, library: str) -> Any:
        """All sites by obc, or all groups by torch-pruning."""
        if library == "obc":
            return obc.trace(self.model, self.example)
        return _peer.groups(self.model, self.example, [self.last])


def densenet() -> Subject:
    """torchvision's DenseNet-121 on one image of 64 pixels.

    The image is noise: zeros stay zeros in a fresh DenseNet, and its outputs would prove nothing.
    """
    torch.manual_seed(0)
    model = import_torchvision().models.densenet121().eval()
    return Subject("DenseNet-121, 64 px", model, torch.rand(1, 3, 64, 64), model.classifier)


def decoder(layers: int) -> Subject:
    """Hugging Face's Llama at the width of the 7B model, without memory, on eight tokens."""
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


def measure(subject: Subject, times: dict[str, Timing]) -> dict[str, Any]:
    """One model's figures, by library."""
    found = {who: subject.trace(who) for who in LIBRARIES}
    channels = (
        sum(s.size for s in found["obc"]),
        sum(len(g[0].idxs) for g in found["torch-pruning"]),
    )
    return {
        "model": subject.name,
        "CPU seconds": times,
        "times faster": times["torch-pruning"].best / times["obc"].best,
        "sites": {who: len(found[who]) for who in LIBRARIES},
        "channels": dict(zip(LIBRARIES, channels, strict=True)),
        "peak bytes": {who: peak_memory(partial(subject.trace, who)) for who in LIBRARIES},
    }


def profile(subject: Subject) -> None:
    """Where our time goes: the library's own functions with all they call, then the costliest."""
    CONSOLE.rule(subject.name)
    subject.trace("obc")
    profiler = cProfile.Profile(time.process_time)
    profiler.runcall(subject.trace, "obc")
    stats = pstats.Stats(profiler)
    stats.sort_stats("cumulative").print_stats(r"/obc/", 25)
    stats.sort_stats("tottime").print_stats(15)


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m benchmarks.trace", description=__doc__)
    options.add_argument("--quick", action="store_true", help="two rounds instead of five")
    options.add_argument("--profile", action="store_true", help="profile our trace, and stop")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    if chosen.profile:
        for subject in (densenet(), decoder(32)):
            profile(subject)
        return
    subjects = [densenet(), decoder(32), decoder(64)]
    times = race(
        {(s.name, who): partial(s.trace, who) for s in subjects for who in LIBRARIES},
        rounds=2 if chosen.quick else 5,
        seconds=300,
    )
    found = [measure(s, {who: times[s.name, who] for who in LIBRARIES}) for s in subjects]
    once, twice = (f["CPU seconds"] for f in found[1:])
    growth = {who: twice[who].best / once[who].best for who in LIBRARIES}
    report(found, growth)
    save("trace", {"models": found, "growth from 32 to 64 layers": growth, "bars": BARS})


def report(found: list[dict[str, Any]], growth: dict[str, float]) -> None:
    """The tables, with the bars they are held against."""
    show(
        "Trace + grouping: CPU seconds, best (median) of interleaved runs; peak MB",
        (
            "model",
            "sites",
            "groups",
            *LIBRARIES,
            "times faster",
            "bar",
            *(f"MB {x}" for x in LIBRARIES),
        ),
        [
            (
                f["model"],
                *f["sites"].values(),
                *(f"{t.best:.2f} ({t.median:.2f})" for t in f["CPU seconds"].values()),
                f"{f['times faster']:.2f}",
                f"≥ {BARS['times faster']:g}",
                *(f"{b / 1e6:.0f}" for b in f["peak bytes"].values()),
            )
            for f in found
        ],
    )
    bar = f"≤ {BARS['growth from 32 to 64 layers']:g}"
    show(
        "Time for 64 layers ÷ time for 32",
        ("library", "growth", "bar"),
        [(who, f"{g:.2f}", bar if who == "obc" else "") for who, g in growth.items()],
    )


if __name__ == "__main__":
    main()
