"""
First prune
===========

Train a small ResNet on scikit-learn's digits, halve its multiply-accumulates with one call, and
compare. :func:`obc.prune` chooses the channels, cuts them out of a copy, proves the cut, and fits
what stays to what the original computes.
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

# %%
# Calibration batches come from the training data; the labels serve the criterion only.
example, batches = task.example(), list(task.calibration(64))
small, plan, account = obc.prune(
    model,
    example,
    batches,
    task.loss,
    target="macs=2x",
    rows=4,
    step=0.1,
    samples=256,
    details=True,
)
print(account.summary())

# %%
# The same plan without recalibration shows what the fit is worth.
cut = obc.apply(copy.deepcopy(model), plan)
models = {"original": model, "cut": cut, "cut, recalibrated": small}
for name, net in models.items():
    cost = obc.cost(net, example)
    print(f"{name:<18} {cost.macs:>8,} MACs {cost.params:>7,} parameters  {task.evaluate(net)}")

# %%
# Which sites gave up how much:
widths = [
    (s.name, s.size, len(plan.kept.get(s.name, range(s.size)))) for s in obc.trace(model, example)
]
names, before, after = zip(*widths, strict=True)
figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
axes.barh(names, before, color="#d9dce1", label="before")
axes.barh(names, after, color="#2a78d6", height=0.5, label="after")
axes.invert_yaxis()
axes.set(xlabel="channels", title="What each site keeps at half the MACs")
axes.legend()
plt.show()
