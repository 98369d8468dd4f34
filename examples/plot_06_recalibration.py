"""
Recalibration, layer by layer
=============================

After a cut, :func:`obc.recalibrate` fits what stays to what the original layers put out: front to
back, in closed form, without labels. It returns an account of the error of each layer on held-out
rows, before and after, as a share of the variance of the original's output.
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
plan = obc.plan(model, example, batches, task.loss, target="macs=3x", rows=4, step=0.1)
cut = obc.apply(copy.deepcopy(model), plan)
fitted = copy.deepcopy(cut)
account = obc.recalibrate(fitted, model, batches, samples=256)
print(account.summary())

# %%
for name, net in {"original": model, "cut": cut, "recalibrated": fitted}.items():
    print(f"{name:<13} {task.evaluate(net)}")

# %%
# A fit is kept only where held-out rows say that it helps; the note of the others says why not.
# Layers in front of the first cut have nothing to make up for, and are left out here.
fits = [fit for fit in account.fits if fit.before is not None and fit.after is not None]
fits = [fit for fit in fits if fit.before > 1e-6]
names = [fit.name.removesuffix(".weight") for fit in fits]
figure, axes = plt.subplots(figsize=(7, 5), layout="constrained")
axes.barh(names, [fit.before for fit in fits], color="#d9dce1", label="cut")
axes.barh(names, [fit.after for fit in fits], color="#2a78d6", height=0.5, label="recalibrated")
axes.invert_yaxis()
axes.set(xlabel="error ÷ variance", title="Held-out error of each layer at 3x")
axes.legend()
plt.show()
