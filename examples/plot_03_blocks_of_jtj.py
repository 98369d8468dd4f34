"""
JᵀJ of single filters
=====================

The Jacobian Criterion takes the curvature JᵀJ for block diagonal, with one block for each
structural parameter, and keeps the whole block where Taylor criteria keep its diagonal.
:func:`obc.jacobian_blocks` computes the blocks of a layer, as in the paper's figure: a filter's
score is wᵀBw, so what lies off the diagonal counts.
"""

import matplotlib.pyplot as plt
import torch
from matplotlib.colors import LogNorm

import obc
from obc.models import resolve
from obc.tasks import resolve as task_of

torch.manual_seed(0)
task = task_of("digits")
model = resolve(task.fitted("resnet20,width=8"))
recipe = obc.Recipe(lr=0.1, weight_decay=5e-4, epochs=3, batch_size=64, schedule="cosine")
obc.finetune(model, task, recipe)
model.eval()

# %%
sites, batches = obc.trace(model, task.example()), list(task.calibration(64))[:20]
layer = "layer1.0.conv1"
blocks = obc.jacobian_blocks(model, sites, batches, task.loss, layer)
weight = model.get_submodule(layer).weight.detach().double().flatten(1)

# %%
# Share of each block that the diagonal holds, and the filter's score with and without the rest:
print("filter   diagonal share   wᵀBw       Σ w²B_ii")
for number, (block, w) in enumerate(zip(blocks, weight, strict=True)):
    w = torch.cat([w, w.new_zeros(len(block) - len(w))])  # a bias, where there is one, comes last
    share = block.diagonal().abs().sum() / block.abs().sum()
    print(
        f"{number:>6} {share:>16.3f} {w @ block @ w:>10.2e} {w.square() @ block.diagonal():>10.2e}"
    )

# %%
figure, grid = plt.subplots(2, 4, figsize=(9, 4.8), layout="constrained")
scale = LogNorm(float(blocks.abs().max()) * 1e-5, float(blocks.abs().max()))
for number, (axes, block) in enumerate(zip(grid.flat, blocks, strict=False)):
    image = axes.imshow(block.abs().clamp_min(scale.vmin), norm=scale, cmap="viridis")
    axes.set(title=f"filter {number}", xticks=[], yticks=[])
figure.colorbar(image, ax=grid, label="|JᵀJ|")
figure.suptitle(f"One block for each filter of {layer}")
plt.show()
