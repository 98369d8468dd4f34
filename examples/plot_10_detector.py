"""
A detector
==========

YOLOv7-tiny at an eighth of its width, with random weights, and images with boxes as its task:
concatenations, pooling at several scales and three outputs. It is traced, cut with proof, and
recalibrated. A trained detector, also one of ultralytics, torchvision or transformers, and data in
the layout of Pascal VOC, COCO or YOLO, take the same calls.
"""

import copy
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Rectangle
from PIL import Image

import obc
from obc.data.boxed import BoxedImages, annotated
from obc.models.yolov7 import yolov7_tiny
from obc.tasks import Detection

torch.manual_seed(0)
folder = Path(tempfile.mkdtemp())
entries = []
for number in range(16):
    pixels = torch.full((64, 64, 3), 90, dtype=torch.uint8)
    (x, y), (w, h) = torch.randint(0, 34, (2,)).tolist(), torch.randint(16, 28, (2,)).tolist()
    label = number % 2
    pixels[y : y + h, x : x + w, 2 * label] = 230
    Image.fromarray(pixels.numpy()).save(folder / f"{number}.png")
    entries.append(annotated(folder / f"{number}.png", [(label, [x, y, x + w, y + h])]))
images = BoxedImages(entries, ["red", "blue"], size=(64, 64))
task = Detection(images, images, name="rectangles")

# %%
# Batches to tune with are flipped, scaled, moved and recoloured, and their boxes with them:
batch = next(task.training(4))
figure, axes = plt.subplots(1, 4, figsize=(9, 2.4), layout="constrained")
for ax, image, (boxes, labels) in zip(axes, batch.images, batch.objects(), strict=True):
    ax.imshow(image.permute(1, 2, 0).clamp(0, 1))
    ax.set(xticks=[], yticks=[])
    for (x1, y1, x2, y2), label in zip(boxes.tolist(), labels.tolist(), strict=True):
        colour = ("#ffd54a", "#7fe3ff")[label]
        ax.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ec=colour, lw=2))
plt.show()

# %%
# What belongs together is found by running the model. Only the outputs stay.
model = yolov7_tiny(num_classes=2, width=0.125).eval()
sites = obc.trace(model, task.example())
print(len(sites), "sites,", sum(site.size for site in sites), "channels")
for frozen in sites.frozen:
    print("stays:", frozen)

# %%
# The loss is the one that YOLOv7 is published with. :func:`obc.apply` runs the cut model and
# compares it with the original whose removed channels are masked; :func:`obc.verify` is the same
# proof on its own. :func:`obc.recalibrate` then fits what stays to what the original computes.
# Weights are random here, so what goes is arbitrary: ``max_ratio`` leaves each site some of it.
plan = obc.plan(
    model,
    task=task,
    batches=task.calibration(8),
    target="macs=2x",
    rows=2,
    step=0.1,
    max_ratio=0.7,
)
small = obc.apply(copy.deepcopy(model), plan)
print("largest deviation from the masked original:", obc.verify(model, small, plan, task.example()))
print(obc.recalibrate(small, model, task.calibration(8), samples=16).summary())
for name, net in {"original": model, "pruned": small}.items():
    cost = obc.cost(net, task.example())
    print(f"{name:<9} {cost.macs:>10,} MACs {cost.params:>8,} parameters | {task.evaluate(net)}")

# %%
figure, axes = plt.subplots(figsize=(9, 3.5), layout="constrained")
places = range(len(sites))
axes.bar(places, [site.size for site in sites], color="#d9dce1", label="before")
axes.bar(places, [len(plan.kept.get(s.name, range(s.size))) for s in sites], label="after")
axes.set(xlabel="site, in the order the network runs", ylabel="channels", title="Half the MACs")
axes.legend()
plt.show()
