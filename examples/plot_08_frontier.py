"""
The frontier: quality over cost
===============================

One planning run passes through every budget: a list of targets gives one plan for each, nested in
the next. Each plan is applied to a copy, recalibrated in a second or so, and measured, which draws
what the model is worth at every cost before any tuning.
"""

import copy

import matplotlib.pyplot as plt
import torch

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

# %%
targets = ["macs=1.25x", "macs=1.5x", "macs=2x", "macs=3x", "macs=5x"]
plans = obc.plan(
    model, example, batches, task.loss, target=targets, rows=6, step=0.05, block="group",
    rank="score/cost",
)  # fmt: skip

# %%
whole = task.evaluate(model).value
rows = [(obc.cost(model, example).macs, whole, whole)]
for plan in plans:
    cut = obc.apply(copy.deepcopy(model), plan)
    fitted = copy.deepcopy(cut)
    obc.recalibrate(fitted, model, batches)
    assert plan.after is not None
    rows.append((plan.after.macs, task.evaluate(cut).value, task.evaluate(fitted).value))
print(f"{'target':<12}{'MACs':>9}{'cut':>8}{'recalibrated':>14}")
for target, (macs, cut_top1, fitted_top1) in zip(["all", *targets], rows, strict=True):
    print(f"{target:<12}{macs:>9,}{cut_top1:>8.1f}{fitted_top1:>14.1f}")

# %%
macs, cut_top1s, fitted_top1s = zip(*rows, strict=True)
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
axes.plot(macs, fitted_top1s, marker="o", label="recalibrated")
axes.plot(macs, cut_top1s, marker="o", label="cut only")
axes.set(xlabel="MACs of one image", ylabel="top-1 in %", title="Quality over cost, not tuned")
axes.legend()
plt.show()
