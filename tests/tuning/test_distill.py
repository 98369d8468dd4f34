"""Distillation: the formula, and a teacher that is asked once per batch without gradient."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import obc
from tests.tuning.small import images, net


@pytest.mark.parametrize(("coefficient", "temperature"), [(0.5, 4.0), (0.2, 1.0), (1.0, 2.0)])
def test_the_formula(coefficient: float, temperature: float) -> None:
    student, teacher = (torch.randn(5, 7, dtype=torch.float64) for _ in range(2))
    loss = torch.tensor(1.7, dtype=torch.float64)
    p, q = ((x / temperature).softmax(1) for x in (teacher, student))
    divergence = sum(
        float(p[i, j] * (p[i, j].log() - q[i, j].log())) for i in range(5) for j in range(7)
    )
    wanted = (1 - coefficient) * 1.7 + coefficient * temperature**2 * divergence / 5
    distance = obc.tasks.Classification().distance(student, teacher, temperature)
    found = (1 - coefficient) * loss + coefficient * distance
    assert float(found) == pytest.approx(wanted, rel=1e-12)


class Counting(nn.Module):
    """A teacher that counts its calls and sees whether gradients are wanted."""

    calls = 0
    grad = False

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        Counting.calls += 1
        Counting.grad |= torch.is_grad_enabled()
        assert not self.training
        found: Tensor = self.inner(x)
        return found


def test_the_teacher_is_asked_once_per_batch_without_gradient(tmp_path: Path) -> None:
    data, student, teacher = images(40), net(), Counting(net())
    teacher.train()
    before = {n: t.clone() for n, t in teacher.state_dict().items()}
    recipe = obc.Recipe(lr=0.1, epochs=2, batch_size=8, distill=0.5, temperature=4.0)
    obc.finetune(student, data, None, recipe, teacher=teacher, out=tmp_path / "run")
    assert (Counting.calls, Counting.grad) == (10, False)
    assert teacher.training, "as it was"
    assert all(torch.equal(before[n], t) for n, t in teacher.state_dict().items())
    assert all(p.grad is None for p in teacher.parameters())


def test_a_student_of_a_teacher_comes_closer_to_it(tmp_path: Path) -> None:
    data, teacher = images(64), net(seed=5)
    plain = obc.Recipe(lr=0.05, epochs=10, batch_size=16)
    taught = plain.changed(distill=1.0, temperature=2.0)
    apart = {}
    for name, recipe, wise in (("plain", plain, None), ("taught", taught, teacher)):
        student = net()
        obc.finetune(student, data, None, recipe, teacher=wise, out=tmp_path / name)
        student.eval(), teacher.eval()
        (batch,) = data.test(64)
        with torch.no_grad():
            apart[name] = float((student(batch.images) - teacher(batch.images)).norm())
    assert apart["taught"] < 0.5 * apart["plain"]


def test_a_recipe_and_a_teacher_belong_together(tmp_path: Path) -> None:
    recipe = obc.Recipe(lr=0.1, epochs=1, batch_size=8)
    with pytest.raises(obc.ObcError, match="the recipe's distill is 0"):
        obc.finetune(net(), images(16), None, recipe, teacher=net(), out=tmp_path / "run")
    with pytest.raises(obc.ObcError, match=r"distill: 0.5 needs a teacher"):
        obc.finetune(net(), images(16), None, recipe.changed(distill=0.5), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
