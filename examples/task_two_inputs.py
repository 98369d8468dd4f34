"""A model with two inputs: does a picture show the number that is asked for?

    obc prune examples/task_two_inputs.py:Asked --task examples/task_two_inputs.py:task \
              --target params=2x --out runs/asked
"""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from obc.tasks import Metric, Task


class Asked(nn.Module):
    """Looks at a picture of 8 × 8 pixels and at a question, one of ten."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.look, self.ask = nn.Linear(64, width), nn.Embedding(10, width)
        self.answer = nn.Sequential(
            nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
        )

    def forward(self, pixels: Tensor, question: Tensor) -> Tensor:
        logits: Tensor = self.answer(self.look(pixels) + self.ask(question))
        return logits.squeeze(1)


class YesOrNo(Task):
    """Batches are dicts; the model takes all of them but the labels."""

    metrics = (Metric("right", unit="%", most=100.0), Metric("loss", higher=False, digits=4))

    def _logits(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits: Tensor = model(**self.inputs(batch))
        return logits

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(self._logits(model, batch), batch["labels"])

    def outcomes(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        logits, labels = self._logits(model, batch), batch["labels"]
        loss = F.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return torch.stack([100.0 * ((logits > 0) == (labels > 0.5)), loss], 1)


def task() -> YesOrNo:
    digits, random = load_digits(), torch.Generator().manual_seed(0)
    shown = torch.tensor(digits.target)
    other = torch.randint(0, 10, shown.shape, generator=random)
    question = torch.where(torch.rand(shown.shape, generator=random) < 0.5, shown, other)
    samples: list[dict[str, Any]] = [
        {"pixels": pixels, "question": asked, "labels": (asked == number).float()}
        for pixels, asked, number in zip(
            torch.tensor(digits.data, dtype=torch.float32) / 16, question, shown, strict=True
        )
    ]
    return YesOrNo(Samples(samples[:1400]), Samples(samples[1400:]), name="asked digits")


class Samples(torch.utils.data.Dataset[dict[str, Any]]):
    """A list of samples as a data set."""

    def __init__(self, samples: list[dict[str, Any]]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return self.samples[number]
