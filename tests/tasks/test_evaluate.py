"""Evaluating counts what a plain loop counts, and leaves the model as it was."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.tuning.small import images, net


def test_it_counts_as_a_plain_loop_does() -> None:
    data, model = images(300, classes=8), net(classes=8).eval()
    found = obc.evaluate(model, data)
    first = fifth = 0
    loss = 0.0
    with torch.no_grad():
        for image, label in zip(*next(iter(data.test(300))), strict=True):
            shares = model(image[None])[0].double().log_softmax(0)
            ranked = shares.argsort(descending=True).tolist()
            first += ranked[0] == int(label)
            fifth += int(label) in ranked[:5]
            loss -= float(shares[label])
    assert found.top1 == pytest.approx(100 * first / 300)
    assert found.top5 == pytest.approx(100 * fifth / 300)
    assert found.loss == pytest.approx(loss / 300, rel=1e-5)
    assert found.top1 < found.top5 < 100


def test_batches_of_the_users_and_outputs_with_logits() -> None:
    data, model = images(50), net()
    batches = list(data.test(20))

    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: Tensor) -> SimpleNamespace:
            return SimpleNamespace(logits=self.inner(x))

    found, wanted = obc.evaluate(model, batches), obc.evaluate(Wrapped(), data)
    assert (found.top1, found.loss) == pytest.approx((wanted.top1, wanted.loss))


def test_modes_are_as_they_were() -> None:
    model = net().train()
    model[1].eval()  # type: ignore[index]
    statistics = model[1].running_mean.clone()  # type: ignore[index]
    obc.evaluate(model, images(20))
    assert model.training and not model[1].training  # type: ignore[index]
    assert torch.equal(statistics, model[1].running_mean)  # type: ignore[index]
    assert all(p.grad is None for p in model.parameters())


def test_bad_input() -> None:
    with pytest.raises(obc.ObcError, match="knows 4 classes, the data has 8"):
        obc.evaluate(net(), images(20, classes=8))
    x = torch.zeros(2, 1, 8, 8)
    with pytest.raises(obc.ObcError, match="knows 4 classes, but a label is 5"):
        obc.evaluate(net(), [(x, torch.tensor([0, 5]))])
    with pytest.raises(obc.ObcError, match="nothing to evaluate"):
        obc.evaluate(net(), [])
    with pytest.raises(obc.ObcError, match="pair"):
        obc.evaluate(net(), [x])
    with pytest.raises(obc.ObcError, match=r"not \[2, 8, 8, 8\]"):
        obc.evaluate(nn.Conv2d(1, 8, 3, padding=1), [(x, torch.tensor([0, 1]))])
