"""
Criteria side by side
=====================

All criteria share the grouping, the aggregation and the ranking, so that a comparison compares
the criteria and nothing else. One run to a list of targets gives nested plans. No tuning and no
recalibration here: this is what the cut alone leaves. One seed on a tiny net is an illustration;
measured comparisons are on the results pages.
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
targets = ["macs=80%", "macs=60%", "macs=40%"]
curves: dict[str, list[float]] = {}
for criterion in ("jacobian", "taylor", "l2"):
    plans = obc.plan(
        model, example, batches, task.loss, target=targets, criterion=criterion, rows=4, step=0.1
    )
    curves[criterion] = [
        task.evaluate(obc.apply(copy.deepcopy(model), plan)).value for plan in plans
    ]

# %%
whole = task.evaluate(model).value
print(f"{'top-1 in %':<10}" + "".join(f"{t:>10}" for t in ["all", *targets]))
for criterion, values in curves.items():
    print(f"{criterion:<10}" + "".join(f"{v:>10.1f}" for v in [whole, *values]))

# %%
kept = [100, *(int(t.removeprefix("macs=").removesuffix("%")) for t in targets)]
figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
for criterion, values in curves.items():
    axes.plot(kept, [whole, *values], marker="o", label=criterion)
axes.invert_xaxis()
axes.set(xlabel="MACs kept in %", ylabel="top-1 in %", title="Cut only, not tuned")
axes.legend()
plt.show()
