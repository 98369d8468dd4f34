"""Saving, loading and exporting pruned models: bytes and seconds, original and pruned."""

from __future__ import annotations

import argparse
import copy
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import obc
from benchmarks._harness import race, save, show
from obc.models import resnet56, vgg19, vit_small
from tests.hugging import import_transformers
from tests.vision import import_torchvision

Subject = tuple[Callable[[], nn.Module], Any]


def llama() -> nn.Module:
    """A decoder of four layers, as wide as a model of 135 million parameters."""
    hf = import_transformers()
    config = hf.LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_attention_heads=9,
        num_key_value_heads=3,
        num_hidden_layers=4,
        vocab_size=4096,
        use_cache=False,
    )
    return hf.LlamaForCausalLM(config)


SUBJECTS: dict[str, Subject] = {
    "ResNet-56": (resnet56, torch.randn(2, 3, 32, 32)),
    "VGG19": (vgg19, torch.randn(2, 3, 32, 32)),
    "MobileNetV2": (
        lambda: import_torchvision().models.mobilenet_v2(),
        torch.randn(2, 3, 64, 64),
    ),
    "ViT": (vit_small, torch.randn(2, 3, 32, 32)),
    "Llama, 4 layers": (llama, {"input_ids": torch.randint(0, 4096, (2, 32))}),
}


def measure(name: str, export: bool) -> dict[str, Any]:
    """One model that keeps every other channel of each site, on its way to disk and back."""
    build, example = SUBJECTS[name]
    torch.manual_seed(0)
    original = build().eval()
    model = copy.deepcopy(original)
    sites = obc.trace(model, example)
    obc.apply(model, obc.Plan.from_kept(sites, {s.name: range(0, s.size, 2) for s in sites}))
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder)
        fresh = [build() for _ in range(3)]
        times = race(
            {
                "save": lambda: obc.save(model, target / "saved"),
                "load": lambda: obc.load(fresh.pop(), target / "saved"),
            },
            rounds=3,
        )
        found = {
            "parameters": [sum(p.numel() for p in m.parameters()) for m in (original, model)],
            "saved bytes": sum(f.stat().st_size for f in (target / "saved").iterdir()),
            "plan bytes": (target / "saved" / "plan.json").stat().st_size,
            "save": times["save"].best,
            "load": times["load"].best,
        }
        if export:
            done = obc.export(model, example, target / "model.onnx", original=original)
            assert done.original is not None
            found |= {
                "onnx error": done.error,
                "onnx bytes": [done.original.bytes, done.pruned.bytes],
                "onnx seconds": [done.original.seconds, done.pruned.seconds],
            }
    return found


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--quick", action="store_true", help="without the exports")
    quick = words.parse_args().quick
    torch.set_num_threads(1)
    results = {name: measure(name, not quick) for name in SUBJECTS}
    show(
        "Every other channel of each site kept; save and load in CPU seconds",
        ["model", "M parameters", "saved MB", "save", "load", "ONNX MB", "ONNX ms", "ONNX error"],
        [
            [
                name,
                " → ".join(f"{n / 1e6:.2f}" for n in r["parameters"]),
                f"{r['saved bytes'] / 1e6:.2f}",
                f"{r['save']:.3f}",
                f"{r['load']:.3f}",
                " → ".join(f"{n / 1e6:.2f}" for n in r.get("onnx bytes", [])),
                " → ".join(f"{1e3 * t:.2f}" for t in r.get("onnx seconds", [])),
                f"{r['onnx error']:.0e}" if "onnx error" in r else "",
            ]
            for name, r in results.items()
        ],
    )
    save("files", {"models": results})


if __name__ == "__main__":
    main()
