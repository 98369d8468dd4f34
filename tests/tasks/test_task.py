"""The seam: data of any kind, batches that come again, halves that share nothing, metrics."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import obc
from obc.data.sources import moved, parts_of, size_of
from obc.tasks import Classification, Evaluation, Metric, Task
from tests.tuning.small import images, net


class Numbered(Task):
    """Samples that are their own number; a model is judged by their mean."""

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        (numbers,) = batch
        return model(numbers[:, None]).square().mean()

    def outcomes(self, model: nn.Module, batch: Any) -> Tensor:
        return batch[0][:, None]


def numbers(count: int) -> TensorDataset:
    return TensorDataset(torch.arange(count, dtype=torch.float32))


def drawn(task: Task, **share: int) -> list[list[float]]:
    return [batch[0].tolist() for batch in task.training(4, **share)]


def test_an_epoch_is_shuffled_by_seed_and_epoch_and_goes_on_from_any_step() -> None:
    task = Numbered(numbers(22))
    whole = drawn(task, seed=3, epoch=1)
    assert len(whole) == task.steps(4) == 5
    torch.manual_seed(99)  # nobody else's numbers matter
    assert drawn(task, seed=3, epoch=1) == whole
    assert drawn(task, seed=3, epoch=1, start=2) == whole[2:]
    assert drawn(task, seed=3, epoch=2) != whole != drawn(task, seed=4, epoch=1)
    seen = [n for batch in whole for n in batch]
    assert len(set(seen)) == 20 and seen != sorted(seen)


def test_processes_share_every_batch() -> None:
    task = Numbered(numbers(16))
    whole, first, second = (
        drawn(task, seed=1, **share)
        for share in ({}, {"rank": 0, "world": 2}, {"rank": 1, "world": 2})
    )
    for batch, a, b in zip(whole, first, second, strict=True):
        assert len(a) == len(b) == 2 and sorted(a + b) == sorted(batch)


@pytest.mark.parametrize("kind", ["samples", "batches", "images"])
def test_halves_are_all_of_the_test_data_and_share_nothing(kind: str) -> None:
    if kind == "images":
        task: Task = Classification(None, images(37))
        model = net().eval()
    else:
        data = numbers(37)
        task = Numbered(None, data if kind == "samples" else DataLoader(data, batch_size=4))
        model = nn.Linear(1, 1)
    whole, search, promise = (
        task.evaluate(model, split) for split in ("test", "search", "promise")
    )  # type: ignore[arg-type]
    parts = [e.samples for e in (whole, search, promise)]
    assert all(part is not None and len(part) for part in parts)
    every, a, b = ([tuple(row) for row in part.tolist()] for part in parts)  # type: ignore[union-attr]
    assert sorted(a + b) == sorted(every) and abs(len(a) - len(b)) <= 4
    if kind != "images":  # where equal rows are other samples
        assert not set(a) & set(b)
    assert "promise" in promise.protocol and "promise" not in whole.protocol


def test_the_value_follows_from_the_samples() -> None:
    """What a paired bound resamples is what the metric was computed from."""
    task, model = Classification(None, images(50)), net()
    found = task.evaluate(model)
    assert found.samples is not None
    again = task.summary(found.samples.sum(0), len(found.samples))
    assert again == pytest.approx(found.values)
    worse = task.summary(found.samples[found.samples[:, 0] == 0].sum(0), 50)
    assert worse[0] == 0


def test_data_of_the_ecosystem_is_data_of_a_task() -> None:
    x, y = torch.randn(24, 3), torch.randint(0, 2, (24,))
    model = nn.Linear(3, 2)
    pairs = TensorDataset(x, y)
    kinds = [pairs, DataLoader(pairs, batch_size=5), [(x[:12], y[:12]), (x[12:], y[12:])]]
    found = [obc.evaluate(model, kind) for kind in kinds]
    assert len({e.top1 for e in found}) == 1
    assert found[0].loss == pytest.approx(found[1].loss) == pytest.approx(found[2].loss)
    recipe = obc.Recipe(lr=0.1, epochs=2, batch_size=6)
    for kind in kinds:
        assert len(obc.finetune(nn.Linear(3, 2), kind, kind, recipe).history) == 2


def test_a_data_set_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")
    x, y = torch.randn(24, 3), torch.randint(0, 2, (24,))
    rows = datasets.Dataset.from_dict({"x": x.tolist(), "label": y.tolist()}).with_format("torch")
    model = nn.Linear(3, 2)
    assert obc.evaluate(model, rows).top1 == obc.evaluate(model, [(x, y)]).top1
    task = Classification(rows, rows)
    plan = obc.plan(
        nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)),
        torch.zeros(1, 3),
        task=task,
        target="channels=50%",
        rows=2,
    )
    assert len(plan.kept["0"]) == 4


def test_batches_of_any_structure() -> None:
    batch = {"ids": torch.zeros(6, 3), "pair": (torch.ones(6), "name")}
    assert size_of(batch) == 6
    first, second = parts_of(batch, 2)
    assert first["ids"].shape == (3, 3) and second["pair"][1] == "name"
    assert moved(batch, torch.device("meta"))["pair"][0].is_meta
    with pytest.raises(obc.ObcError, match="whose first dimension counts samples"):
        size_of({"name": "x"})


def test_metrics_know_which_way_is_better() -> None:
    up, down = Metric("top1", unit="%"), Metric("perplexity", higher=False)
    assert up.better(2, than=1) and not up.better(1, than=1)
    assert down.better(1, than=2) and not down.better(2, than=1)
    nan, inf = float("nan"), float("inf")
    assert down.better(5, than=inf) and down.better(5, than=nan) and not down.better(nan, than=5)
    assert (up.title, down.title) == ("top1 % ↑", "perplexity ↓")
    found = Evaluation((down, up), (3.25, 90.0))
    assert str(found) == "perplexity 3.25, top1 90.00%"
    assert found.better(None) and found.better(Evaluation((down,), (4.0,)))
    with pytest.raises(obc.ObcError, match="no metric named 'perplexty'; did you mean"):
        found["perplexty"]
    with pytest.raises(AttributeError):
        found.accuracy  # noqa: B018


def test_distance_of_any_outputs_is_a_mean_of_squares() -> None:
    task = Numbered(numbers(4))
    a, b = {"x": torch.ones(2, 3)}, {"x": torch.zeros(2, 3)}
    assert float(task.distance(a, b, 4.0)) == 1.0 == float(F.mse_loss(a["x"], b["x"]))


def test_bad_input() -> None:
    task = Numbered(numbers(8))
    with pytest.raises(obc.ObcError, match="no test data"):
        task.evaluate(nn.Linear(1, 1))
    with pytest.raises(obc.ObcError, match="more than the 8 samples"):
        task.steps(16)
    with pytest.raises(obc.ObcError, match="crop: Numbered has no such option"):
        task.changed(crop=2)
    with pytest.raises(obc.ObcError, match="more than once, not a generator"):
        Numbered(x for x in [1])
    with pytest.raises(NotImplementedError, match=r"no loss\(model, batch\)"):
        Task([torch.zeros(1)]).loss(nn.Linear(1, 1), torch.zeros(1))
    with pytest.raises(obc.ObcError, match="an example, or a task"):
        obc.plan(nn.Linear(1, 1), target="macs=2x")
