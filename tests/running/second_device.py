"""A trace, scores, a plan, a cut and its recalibration on a second device, as on the CPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.elsewhere import DEVICE, call, elsewhere


def net() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.ReLU()]
    return nn.Sequential(*first, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)).eval()


def loss(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x).square().mean()
    return y


def through(model: nn.Module, example: Tensor, batches: list[Tensor]) -> dict[str, Any]:
    """What each verb gives, one after the other."""
    sites = obc.trace(model, example)
    plan = obc.plan(model, example, batches, loss, target="channels=50%", step=0.1)
    pruned = obc.apply(copy.deepcopy(model), plan, example=example)
    cut = pruned(example)
    fits = obc.recalibrate(pruned, model, batches, call=call, example=example)
    factors = obc.apply(copy.deepcopy(model), plan, example=example, equivalent=True)
    return {
        "score": obc.score(model, sites, batches, loss),
        "plan": plan.kept,
        "apply": {"cut": cut, "factors": factors(example)},
        "recalibrate": {"outputs": pruned(example), **dict(pruned.named_parameters())},
        "kept fits": sum(fit.kept for fit in fits.fits),
        "devices": {t.device.type for t in (*pruned.parameters(), *factors.parameters())},
    }


def main() -> None:
    torch.manual_seed(0)
    example, batches = torch.rand(2, 3, 8, 8), [torch.rand(16, 3, 8, 8) for _ in range(8)]
    here = through(net(), example, batches)
    with elsewhere():
        with pytest.raises(RuntimeError, match="and on the CPU"):
            torch.ones(2, device=DEVICE) + torch.ones(2)
        there = through(net().to(DEVICE), example.to(DEVICE), [b.to(DEVICE) for b in batches])
        assert here["plan"] == there["plan"] and here["kept fits"] == there["kept fits"] > 0
        assert there["devices"] == {DEVICE.type} != here["devices"]
        for verb in ("score", "apply", "recalibrate"):
            assert here[verb].keys() == there[verb].keys()
            for name, value in here[verb].items():
                assert torch.allclose(there[verb][name].cpu(), value, atol=1e-5), (verb, name)
        moved = (there["recalibrate"]["outputs"] - there["apply"]["cut"]).abs().max()
        assert float(moved) > 1e-4, "nothing was recalibrated"
    print("the same")


if __name__ == "__main__":
    main()
