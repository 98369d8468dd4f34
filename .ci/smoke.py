"""What a stranger does first with an installed obc: prune, save, load, and find the recipes."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path

import torch

import obc
from obc.models import resnet20
from obc.tuning.recipe import known

assert "site-packages" in obc.__file__, f"this is a checkout: {obc.__file__}"
assert "resnet20-digits" in known()
model, example = resnet20(width=4).eval(), torch.randn(2, 3, 16, 16)
batches = [(torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))) for _ in range(2)]
plan = obc.plan(
    model,
    example,
    batches,
    lambda net, batch: torch.nn.functional.cross_entropy(net(batch[0]), batch[1]),
    target="channels=50%",
    step=0.1,
)
pruned = obc.apply(copy.deepcopy(model), plan)
with tempfile.TemporaryDirectory() as folder:
    obc.save(pruned, Path(folder) / "pruned")
    again = obc.load(resnet20(width=4), Path(folder) / "pruned").eval()
assert torch.equal(again(example), pruned(example))
print(plan.summary())
