"""
A detector
==========

YOLOv7-tiny at an eighth of its width learns a few rectangles by heart. It is traced, cut with
proof, recalibrated without labels, and judged by mAP before and after. A detector of ultralytics,
torchvision or transformers, and data in the layout of Pascal VOC, COCO or YOLO, take the same
calls.
"""

import copy
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.patches import Rectangle
from PIL import Image
from torch import nn

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
# Training goes through the loss that YOLOv7 is published with; images are flipped, scaled, moved
# and recoloured on the way.
model = yolov7_tiny(num_classes=2, width=0.125)
recipe = obc.Recipe(lr=0.01, epochs=40, batch_size=8, optimizer="adamw", schedule="cosine", ema=0.9)
obc.finetune(model, Detection(images), recipe, tracker=None)
print(task.evaluate(model), task.per_class(model))

# %%
# What belongs together is found by running the model once. Only the outputs stay.
sites = obc.trace(model, task.example())
print(len(sites), "sites,", sum(site.size for site in sites), "channels")
for frozen in sites.frozen:
    print("stays:", frozen)

# %%
# :func:`obc.apply` runs the cut model and compares it with the original whose removed channels are
# masked; :func:`obc.recalibrate` then fits what stays to what the original computes.
plan = obc.plan(model, task=task, batches=task.calibration(8), target="macs=2x", rows=2, step=0.1)
small = obc.apply(copy.deepcopy(model), plan)
print("largest deviation:", obc.verify(model, small, plan, task.example()))
cut = task.evaluate(small)
obc.recalibrate(small, model, task.calibration(8), samples=16)
print(f"whole {task.evaluate(model)} | cut {cut} | recalibrated {task.evaluate(small)}")

# %%
# The same images through both models, as the report of ``obc prune`` shows them.
batch = next(images.test(4))
figure, axes = plt.subplots(2, 4, figsize=(9, 4.6), layout="constrained")


def draw(row: int, name: str, net: nn.Module) -> None:
    for ax, image, found in zip(
        axes[row], batch.images, task.found(net, batch.images), strict=True
    ):
        ax.imshow(image.permute(1, 2, 0))
        ax.set(xticks=[], yticks=[], title=name)
        for box, score, label in zip(*found, strict=True):
            if score > 0.25:
                x1, y1, x2, y2 = box.tolist()
                colour = ("#ffd54a", "#7fe3ff")[int(label)]
                ax.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False, ec=colour, lw=2))


draw(0, "whole", model)
draw(1, "half the MACs", small)
plt.show()
