"""
Gradients do not vanish
=======================

Second-order criteria leave the gradient out, because a trained network is taken to sit at a
minimum. The paper shows for a ResNet-56 on CIFAR-100 that it does not: the gradient norm of a layer
does not converge to zero, and those of its filters differ widely. Digits are easier, and here the
norm falls with the loss; yet it does not vanish either, and filters differ as much. The Jacobian
Criterion keeps what the gradient says.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import obc
from obc.models import resolve
from obc.tasks import resolve as task_of

torch.manual_seed(0)
task = task_of("digits")
model = resolve(task.fitted("resnet20,width=8"))

# %%
# A callback of :func:`obc.finetune` sees the model after each backward pass.
norms: list[Tensor] = []


def record(net: nn.Module) -> None:
    weight = next(m for m in net.modules() if isinstance(m, nn.Conv2d)).weight
    assert weight.grad is not None
    norms.append(weight.grad.detach().flatten(1).norm(dim=1))  # one for each filter


recipe = obc.Recipe(lr=0.1, weight_decay=5e-4, epochs=6, batch_size=64, schedule="cosine")
tuned = obc.finetune(model, task, recipe, callback=record)
filters = torch.stack(norms)  # [steps, filters]
steps = len(filters) // recipe.epochs

# %%
print("epoch   loss     gradient norm of the first layer")
for epoch, entry in enumerate(tuned.history):
    size = filters[epoch * steps : (epoch + 1) * steps].square().sum(1).sqrt().mean()
    print(f"{epoch + 1:>5}   {entry['loss']:<8.4f} {size:.4f}")

# %%
figure, (left, middle, right) = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
left.plot(range(1, recipe.epochs + 1), [entry["loss"] for entry in tuned.history], marker="o")
left.set(xlabel="epoch", title="training loss", yscale="log")
middle.plot(filters.square().sum(1).sqrt(), lw=0.8)
middle.set(xlabel="step", title="gradient norm, first layer", yscale="log")
last = filters[-steps:].mean(0)
right.bar(range(len(last)), last)
right.set(xlabel="filter", title="the same by filter, last epoch")
plt.show()
