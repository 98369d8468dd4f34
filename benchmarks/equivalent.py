"""What a training step costs with C and D, beside the naive network and the printed form.

Rounded: with `torch.set_float32_matmul_precision("medium")`, which lets products with C and D be
of bfloat16. The weights are stepped as `obc.finetune` does it.
"""

from __future__ import annotations

import argparse
import copy
import json
import tempfile
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import obc
from benchmarks._harness import race, save, show
from obc.equivalent import hold
from obc.models import resnet56, vgg19
from tests.inserted import apply_inserted

# How to build it, how many times fewer MACs, the batch, and the ratio to stay below.
MODELS: dict[str, tuple[Callable[[], nn.Module], float, int, float]] = {
    "VGG19 at 3x": (vgg19, 3.0, 128, 1.25),
    "VGG19 at half width": (vgg19, 4.0, 64, 1.5),
    "ResNet-56 at 2x": (resnet56, 2.0, 128, 1.35),
}
FORMS = {"naive": None, "folded": "folded", "inserted": "inserted"}
ROUNDED = "folded, rounded"


def plan_for(model: nn.Module, speedup: float) -> obc.Plan:
    """The same random share of every site, as large as the wanted MACs allow."""
    example = torch.zeros(1, 3, 32, 32)
    sites = obc.trace(model, example)
    full = obc.cost(model, example).macs
    random = torch.Generator().manual_seed(0)
    orders = {s.name: torch.randperm(s.size, generator=random) for s in sites}
    low, high = 0.0, 1.0
    for _ in range(8):
        share = (low + high) / 2
        kept = {s.name: orders[s.name][: max(1, round(share * s.size))] for s in sites}
        plan = obc.Plan.from_kept(sites, kept)
        small = obc.apply(copy.deepcopy(model), plan)
        faster = full / obc.cost(small, example).macs >= speedup
        low, high = (share, high) if faster else (low, share)
    return plan


def pruned(model: nn.Module, plan: obc.Plan, form: str | None) -> nn.Module:
    twin = copy.deepcopy(model)
    if form is None:
        return obc.apply(twin, plan)
    if form == "inserted":
        return apply_inserted(twin, plan)
    return obc.apply(twin, plan, equivalent=True)


class Step:
    """One training step of a batch, SGD with momentum; in `parts` for gathered gradients."""

    def __init__(
        self,
        model: nn.Module,
        batch: int,
        parts: int = 1,
        held: bool = False,
        precision: str = "highest",
    ) -> None:
        random = torch.Generator().manual_seed(0)
        self.x = torch.randn(batch, 3, 32, 32, generator=random)
        self.y = torch.randint(0, 10, (batch,), generator=random)
        self.model, self.parts, self.held = model.train(), parts, held
        self.precision = precision
        groups = obc.parameter_groups(model, 0.01, 5e-4, 0.01)
        self.optimizer = torch.optim.SGD(groups, momentum=0.9, fused=True)

    def __call__(self) -> None:
        torch.set_float32_matmul_precision(self.precision)
        self.optimizer.zero_grad()
        if self.held:
            with hold(self.model):
                self.gather()
        else:
            self.gather()
        self.optimizer.step()

    def gather(self) -> None:
        size = len(self.x) // self.parts
        for x, y in zip(self.x.split(size), self.y.split(size), strict=True):
            loss: Tensor = functional.cross_entropy(self.model(x), y)
            loss.backward()


def networks(build: Callable[[], nn.Module], speedup: float) -> tuple[int, dict[str, nn.Module]]:
    """Bytes of the full weights, and the pruned networks in every form."""
    torch.manual_seed(0)
    model = build()
    plan = plan_for(model, speedup)
    nets = {form: pruned(model, plan, how) for form, how in FORMS.items()}
    return sum(p.numel() * p.element_size() for p in model.parameters()), nets


def work(model: nn.Module, batch: int) -> int:
    """Floating-point operations of a step's forward and backward passes, without running it."""
    twin = copy.deepcopy(model).to("meta").train()
    with FlopCounterMode(display=False) as counter:
        twin(torch.zeros(batch, 3, 32, 32, device="meta")).sum().backward()
    return counter.get_total_flops()


def memory(step: Step) -> int:
    """The most that tensors take during two steps, parameters included.

    Counted by torch's profiler: the peak of the process wobbles by more than a small network.
    The first step makes the momentum buffers.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        step()
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/trace.json"
        seen.export_chrome_trace(path)
        with open(path) as file:
            events = [e for e in json.load(file)["traceEvents"] if e.get("name") == "[memory]"]
    now = most = 0
    for event in sorted(events, key=lambda e: e["ts"]):
        now += event["args"]["Bytes"]
        most = max(most, now)
    return most + sum(p.numel() * p.element_size() for p in step.model.parameters())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[list[object]] = []
    results = {}
    for name in options.models:
        build, speedup, batch, bar = MODELS[name]
        weights, nets = networks(build, speedup)
        used = {form: memory(Step(net, batch)) for form, net in nets.items()}
        extra = (used["folded"] - used["naive"]) / weights
        flops = {form: work(net, batch) for form, net in nets.items()}
        steps = {form: Step(copy.deepcopy(net), batch) for form, net in nets.items()}
        steps[ROUNDED] = Step(copy.deepcopy(nets["folded"]), batch, precision="medium")
        steps["naive, in 4 parts"] = Step(copy.deepcopy(nets["naive"]), batch, 4)
        steps["folded, in 4 parts"] = Step(copy.deepcopy(nets["folded"]), batch, 4)
        steps["folded, in 4 parts, held"] = Step(copy.deepcopy(nets["folded"]), batch, 4, True)
        for step in steps.values():
            step()
        times = race(steps, options.rounds, seconds=240)
        for form, time in times.items():
            base = times["naive, in 4 parts" if "parts" in form else "naive"].best
            ratio = time.best / base
            goal = f"<= {bar}" if form in ("folded", ROUNDED) else ""
            mega = f"{used[form] / 2**20:.0f}" if form in used else ""
            least = f"{flops[form] / flops['naive']:.2f}" if form in flops else ""
            label = f"{name}, batch {batch}"
            rows.append([label, form, f"{time.best:.2f}", f"{ratio:.2f}", goal, least, mega])
        rows.append([name, "folded - naive, in full weights", "", "", "<= 4", "", f"{extra:.2f}"])
        results[name] = {
            "batch": batch,
            "times": times,
            "work": flops,
            "memory": used,
            "weights": weights,
            "extra": extra,
        }
        save("equivalent", results)
    show(
        f"A training step, {options.threads} threads",
        ["model", "form", "CPU s", "÷ naive", "goal", "operations ÷ naive", "peak MB"],
        rows,
    )


if __name__ == "__main__":
    main()
