"""
A detector
==========

YOLOv7-tiny at an eighth of its width, with random weights: concatenations, pooling at several
scales and three outputs. It is traced, cut, and the cut is proven; a trained detector takes the
same calls.
"""

import copy

import matplotlib.pyplot as plt
import torch
from torch import Tensor

import obc
from obc.models.yolov7 import YOLOv7, yolov7_tiny
from obc.models.yolov7_loss import yolov7_loss

torch.manual_seed(0)
model = yolov7_tiny(num_classes=3, width=0.125).eval()
example = torch.rand(1, 3, 64, 64)
sites = obc.trace(model, example)
print(len(sites), "sites,", sum(site.size for site in sites), "channels")
for frozen in sites.frozen:
    print("stays:", frozen)

# %%
# The loss that YOLOv7 is trained with, on two images with a box each:
targets = [
    {"boxes": torch.tensor([[8.0, 8, 40, 40]]), "labels": torch.tensor([label])} for label in (0, 2)
]


def loss(model: YOLOv7, images: Tensor) -> Tensor:
    return yolov7_loss(model.detect, model(images), targets)


batches = [torch.rand(2, 3, 64, 64) for _ in range(4)]
plan = obc.plan(model, example, batches, loss, target="macs=2x", rows=4, step=0.1)

# %%
# :func:`obc.apply` runs the cut model and compares it with the original whose removed channels are
# masked; :func:`obc.verify` is the same proof on its own.
small = obc.apply(copy.deepcopy(model), plan)
print("largest deviation from the masked original:", obc.verify(model, small, plan, example))
for name, net in {"original": model, "pruned": small}.items():
    cost = obc.cost(net, example)
    print(f"{name:<9} {cost.macs:>10,} MACs {cost.params:>8,} parameters")

# %%
figure, axes = plt.subplots(figsize=(9, 3.5), layout="constrained")
places = range(len(sites))
axes.bar(places, [site.size for site in sites], color="#d9dce1", label="before")
axes.bar(places, [len(plan.kept.get(s.name, range(s.size))) for s in sites], label="after")
axes.set(xlabel="site, in the order the network runs", ylabel="channels", title="Half the MACs")
axes.legend()
plt.show()
