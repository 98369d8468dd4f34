"""
Equivalent Pruning through one layer
====================================

With ``equivalent=True`` removed connections go on contributing while the model is tuned: a layer
keeps its full weight W and computes with Ŵ = C W Dᵀ. C and D start as the kept rows of the
identity; after tuning, the columns of removed channels are no longer zero. :func:`obc.merge` folds
them, and a plain small layer is left.
"""

import copy

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import obc
from obc.models import resolve
from obc.tasks import resolve as task_of

torch.manual_seed(0)
task = task_of("digits")
model = resolve(task.fitted("resnet20,width=8"))
recipe = obc.Recipe(lr=0.1, weight_decay=5e-4, epochs=3, batch_size=64, schedule="cosine")
obc.finetune(model, task, recipe)
model.eval()
example, batches = task.example(), list(task.calibration(64))
plan = obc.plan(model, example, batches, task.loss, target="macs=4x", rows=4, step=0.1)

# %%
# The factors are parametrizations of the layers' weights; any training loop tunes them along.
net = obc.apply(copy.deepcopy(model), plan, equivalent=True)


def factors(net: nn.Module, kind: str, layer: str) -> Tensor:
    """The matrix C or D of a layer, [kept, all]."""
    names = [n for n, _ in net.get_submodule(layer).named_parameters() if f".{kind}." in n]
    return net.get_submodule(layer).get_parameter(names[0]).detach().clone()[0]


# A site that keeps about a quarter of its channels shows what happens to the others.
site = min(plan.sites, key=lambda name: abs(len(plan.kept[name]) / plan.sites[name].size - 0.25))
writer = site
reader = next(m.layer for m in obc.trace(model, example)[site].members if m.role == "in")
before = {"C": factors(net, "C", writer), "D": factors(net, "D", reader)}

# %%
net.train()
optimizer = torch.optim.SGD(obc.parameter_groups(net, lr=0.02, ep_lr=0.1), momentum=0.9)
for _ in range(2):
    for batch in batches:
        optimizer.zero_grad()
        task.loss(net, batch).backward()
        optimizer.step()
net.eval()
after = {"C": factors(net, "C", writer), "D": factors(net, "D", reader)}

# %%
# Folding changes the form, not the function:
x = torch.cat([batch.images for batch in batches])[:256]
with torch.no_grad():
    tuned = net(x)
    merged = obc.merge(net)(x)
print("largest difference after merging:", float((tuned - merged).abs().max()))
print("merged:", task.evaluate(net))

# %%
figure, grid = plt.subplots(2, 2, figsize=(8, 5), layout="constrained")
for row, (kind, layer) in enumerate({"C": writer, "D": reader}.items()):
    for axes, state, matrix in zip(grid[row], ("before", "after"), (before, after), strict=True):
        image = axes.imshow(matrix[kind], cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
        axes.set(title=f"{kind} of {layer}, {state} tuning", ylabel="kept", xlabel="channel")
        axes.yaxis.get_major_locator().set_params(integer=True)
figure.colorbar(image, ax=grid)
plt.show()
