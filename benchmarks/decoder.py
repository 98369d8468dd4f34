"""What scoring a decoder costs in time and memory, beside a plain forward and backward pass.

The model has the shapes of SmolLM2-135M (30 blocks of width 576, tied embeddings of 49,152 tokens)
and random weights; a row is 256 tokens, in float32 on one thread.

    python -m benchmarks.decoder
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch

from benchmarks._harness import peak_memory, race, save, show
from obc.criteria.criterion import make
from obc.criteria.score import Scorer
from obc.models.resolver import library
from obc.search.choice import chosen
from obc.tasks import Language
from obc.tracing.tracer import Tracing

SHAPES = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
LENGTH = 256
Runs = dict[str, Callable[[], object]]


def contenders() -> Runs:
    """A row by each way; scorers have seen one before."""
    hf = library("transformers", "hf")
    torch.manual_seed(0)
    model: Any = hf.LlamaForCausalLM(hf.LlamaConfig(**SHAPES)).eval()
    ids = torch.randint(SHAPES["vocab_size"], (4 * LENGTH,))
    task = Language(ids, ids, length=LENGTH, row=LENGTH)
    row = next(iter(task.calibration(1)))
    # Random weights that are cut show what real ones do, but take long to prove it.
    sites = Tracing(model, task.example()[:, :8], rehearse=False).sites
    weights = list(model.parameters())
    runs: Runs = {"plain": lambda: torch.autograd.grad(task.loss(model, row), weights)}
    inner = chosen(sites, ("ffn", "heads"))
    for name, names, checkpoint in (
        ("ffn and heads", inner, False),
        ("all sites", None, False),
        ("ffn and heads, checkpointed", inner, True),
    ):
        scorer = Scorer(
            model, sites, task.loss, make("jacobian"), names=names, checkpoint=checkpoint
        )
        scorer.totals([row])
        runs[name] = lambda scorer=scorer: scorer.totals([row])  # type: ignore[misc]
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    runs = contenders()
    memory = {name: peak_memory(run) for name, run in runs.items()}
    times = {name: timing.best for name, timing in race(runs, options.rounds, 400).items()}
    bars = {"ffn and heads": (0.75, 0.5), "all sites": (0.75, 0.5)}
    figures = [
        {
            "row": name,
            "seconds": round(times[name], 3),
            "time": round(times[name] / times["plain"], 3),
            "memory": round(memory[name] / memory["plain"], 3),
            "megabytes": round(memory[name] / 2**20),
            "bars": bars.get(name),
        }
        for name in runs
    ]
    show(
        "one row of 256 tokens, ÷ a plain forward and backward pass",
        ("row", "CPU seconds", "time", "extra memory", "MB", "bars"),
        [tuple(f.values()) for f in figures],
    )
    save("decoder", {"length": LENGTH, "figures": figures})


if __name__ == "__main__":
    main()
