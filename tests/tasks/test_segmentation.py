"""`Segmentation`: mIoU as torchmetrics computes it, and a U-Net through everything."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import obc
from obc.cli.inputs import model_of
from obc.surgery.record import applied
from obc.tasks import Segmentation
from tests.cli.running import done
from tests.tasks.own import EXAMPLES, example
from tests.vision import import_torchvision

CLASSES, IGNORED = 4, 255


def batches(count: int = 3, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Images and masks without class 3, a tenth of whose pixels count for nothing."""
    random = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 5, 3, 6, 7, generator=random)
    masks = torch.randint(0, CLASSES - 1, (count, 5, 6, 7), generator=random)
    masks[torch.rand(masks.shape, generator=random) < 0.1] = IGNORED
    return list(zip(images, masks, strict=True))


def net(classes: int = CLASSES) -> nn.Module:
    torch.manual_seed(1)
    return nn.Conv2d(3, classes, 3, padding=1)


@pytest.mark.parametrize("unseen", [False, True], ids=["all classes guessed", "one never"])
def test_as_torchmetrics_counts(unseen: bool) -> None:
    import_torchvision()
    from torchmetrics.classification import MulticlassAccuracy, MulticlassJaccardIndex

    model, data = net(), batches()
    if unseen:  # neither in masks nor guessed: no class of this data
        with torch.no_grad():
            model.bias[3] = -100.0  # type: ignore[index,operator]
    options: dict[str, Any] = {"num_classes": CLASSES, "ignore_index": IGNORED}
    overlap = MulticlassJaccardIndex(average="macro", **options)
    right = MulticlassAccuracy(average="micro", **options)
    for images, masks in data:
        guesses = model(images).argmax(1)
        assert bool((guesses == 3).any()) is not unseen
        overlap.update(guesses, masks)
        right.update(guesses, masks)
    evaluation = Segmentation(None, data).evaluate(model)
    assert evaluation.miou == pytest.approx(100 * float(overlap.compute()), rel=1e-6)
    assert evaluation.pixels == pytest.approx(100 * float(right.compute()), rel=1e-6)
    other = Segmentation(None, data, ignore=2).evaluate(net(256))
    assert other.miou != pytest.approx(evaluation.miou, rel=1e-3), "what is ignored matters"


def test_the_loss_is_that_of_all_pixels() -> None:
    model, data = net(), batches()
    images, masks = (torch.cat(parts) for parts in zip(*data, strict=True))
    plain = F.cross_entropy(model(images), masks, ignore_index=IGNORED).detach()
    task = Segmentation(data, data)
    assert task.evaluate(model).loss == pytest.approx(float(plain), rel=1e-6)
    assert torch.equal(task.loss(model, (images, masks)).detach(), plain)


def test_values_follow_from_the_images_one_by_one() -> None:
    task = Segmentation(None, batches())
    evaluation = task.evaluate(net())
    assert evaluation.samples is not None and len(evaluation.samples) == 15
    again = task.summary(evaluation.samples.sum(0), 15)
    assert again == pytest.approx(evaluation.values)


class Coarse(nn.Module):
    """Logits at half the size, held as libraries hold them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = net(), kind

    def forward(self, x: Tensor) -> Any:
        logits = F.avg_pool2d(self.layer(x), 2)
        return {
            "tensor": logits,
            "torchvision": {"out": logits, "aux": logits},
            "transformers": SimpleNamespace(logits=logits),
        }[self.kind]


def test_outputs_of_other_libraries_and_sizes() -> None:
    data = [(x, torch.randint(0, CLASSES, (5, 6, 6))) for x, _ in batches()]
    data = [(x[..., :6], masks) for x, masks in data]
    values = {
        Segmentation(None, data).evaluate(Coarse(kind)).values
        for kind in ("tensor", "torchvision", "transformers")
    }
    assert len(values) == 1
    scaled = nn.Sequential(Coarse("tensor"), nn.Upsample(scale_factor=2, mode="bilinear"))
    assert values == {Segmentation(None, data).evaluate(scaled).values}


def test_distance_is_that_of_classes_at_each_pixel() -> None:
    student, teacher = torch.randn(2, 2, CLASSES, 3, 5).double()
    rows = [x.permute(0, 2, 3, 1).reshape(-1, CLASSES).log_softmax(1) for x in (student, teacher)]
    slow = (rows[1].exp() * (rows[1] - rows[0])).sum(1).mean()
    torch.testing.assert_close(Segmentation().distance(student, teacher, 1.0), slow)


@pytest.mark.parametrize(
    ("model", "masks", "error"),
    [
        (net(2), torch.full((5, 6, 7), 2), "knows 2 classes, but a pixel is 2"),
        (net(), torch.full((5, 6, 7), IGNORED), "which counts for nothing"),
        (nn.Sequential(nn.Flatten(), nn.Linear(126, 4)), torch.zeros(5, dtype=torch.long),
         r"not \[5, 4\] for \[5\]"),
    ],
)  # fmt: skip
def test_bad_input(model: nn.Module, masks: Tensor, error: str) -> None:
    with pytest.raises(obc.ObcError, match=error):
        Segmentation(None, [(batches()[0][0], masks)]).evaluate(model)


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example's U-Net, trained by its recipe on the command line."""
    out = tmp_path_factory.mktemp("unet")
    file = EXAMPLES / "task_segmentation.py"
    recipe = (EXAMPLES / "task_segmentation.toml").read_text()
    (out / "recipe.toml").write_text(recipe.replace("examples/task_segmentation.py", str(file)))
    done("tune", f"{file}:UNet", "--recipe", out / "recipe.toml", "--out", out / "dense")
    return out


def test_a_unet_is_cut_recalibrated_and_tuned(learned: Path) -> None:
    task, model = example("task_segmentation").task(), model_of(str(learned / "dense"))
    whole = task.evaluate(model).miou
    assert whole > 70
    plan = obc.plan(model, task=task, target="macs=2x", rows=4, step=0.05)
    pruned = obc.apply(copy.deepcopy(model), plan)
    cut = task.evaluate(pruned).miou
    obc.recalibrate(pruned, model, task, samples=128)
    refitted = task.evaluate(pruned).miou
    assert cut < refitted <= whole + 1
    recipe = obc.Recipe(lr=0.05, epochs=1, batch_size=32, distill=0.5)
    tuned = obc.finetune(pruned, task, recipe, teacher=model)
    assert tuned.last is not None and tuned.last.miou > 0.8 * whole


@pytest.mark.slow
def test_a_drop_in_miou_is_promised_on_the_command_line(learned: Path) -> None:
    file, out = EXAMPLES / "task_segmentation.py", learned / "small"
    done(
        *("prune", learned / "dense", "--task", f"{file}:task", "--target", "miou-8%"),
        *("--rows", 2, "--step", 0.2, "--recalibrate", 64, "--batch-size", 32, "--out", out),
    )
    plan = applied(model_of(str(out)))[-1]
    assert plan.promise is not None and plan.promise.method == "bootstrap"
    assert plan.promise.meaning == "mIoU falls by at most 8 points"
    assert plan.promise.estimate <= plan.promise.bound <= 8
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "mIoU % ↑" in page and "top-1" not in page
