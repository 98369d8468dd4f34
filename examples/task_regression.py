"""A task of your own: predict the patient's progression from ten numbers (scikit-learn's diabetes).

    obc tune   examples/task_regression.py:net --task examples/task_regression.py:task \
               --recipe examples/task_regression.toml --out runs/dense
    obc prune  runs/dense --task examples/task_regression.py:task --target macs=2x --out runs/half
    obc report runs/half
"""

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from obc.tasks import Metric, Task


class Regression(Task):
    """Mean squared error, judged by its root, of which less is better."""

    metrics = (Metric("rmse", higher=False, digits=1),)

    def loss(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        inputs, targets = batch
        return F.mse_loss(model(inputs), targets)

    def outcomes(self, model: nn.Module, batch: list[Tensor]) -> Tensor:
        inputs, targets = batch
        return (model(inputs) - targets).square()  # one row for each sample

    def summary(self, totals: Tensor, count: int) -> list[float]:
        return [100 * float(totals / count) ** 0.5]


def task() -> Regression:
    inputs, targets = (torch.tensor(x, dtype=torch.float32) for x in load_diabetes(return_X_y=True))
    inputs, targets = 20 * inputs, (targets[:, None] - 152) / 100
    train, test = (TensorDataset(inputs[s], targets[s]) for s in (slice(342), slice(342, None)))
    return Regression(train, test, name="diabetes")


def net(width: int = 64) -> nn.Module:
    return nn.Sequential(
        nn.Linear(10, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
