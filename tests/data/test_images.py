"""Batches come in an order that seed and epoch decide, shared out without loss or repetition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import obc
from obc.data import Loaded, load
from obc.data.images import statistics


def numbered(count: int, classes: int = 10) -> Loaded:
    """Images whose pixels are their number."""
    pixels = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    labels = torch.arange(count) % classes
    return Loaded(pixels.contiguous(), labels, [str(i) for i in range(classes)], [0.0], [1 / 255])


def numbers(images: Tensor) -> list[int]:
    return [round(v) for v in images[:, 0, 0, 0].tolist()]


def test_an_epoch_sees_every_image_once_and_labels_stay_with_their_images() -> None:
    data = numbered(100)
    seen = []
    for images, labels in data.train(10, seed=3, epoch=2):
        found = numbers(images)
        assert [n % 10 for n in found] == labels.tolist()
        seen += found
    assert sorted(seen) == list(range(100))
    assert seen != sorted(seen)


def test_the_order_follows_from_seed_and_epoch_alone() -> None:
    data = numbered(64)

    def order(**given: int) -> list[int]:
        torch.randn(7)  # whatever else drew numbers
        return [n for b in data.train(8, **given) for n in numbers(b.images)]

    assert order(seed=1, epoch=2) == order(seed=1, epoch=2)
    assert len({tuple(order(seed=s, epoch=e)) for s in range(3) for e in range(3)}) == 9
    assert order(seed=1, epoch=2, start=3) == order(seed=1, epoch=2)[24:]


@pytest.mark.parametrize("repeats", [1, 2])
def test_processes_share_each_batch(repeats: int) -> None:
    data = numbered(40)
    whole = [sorted(numbers(b.images)) for b in data.train(8, epoch=1, repeats=repeats)]
    shares = [data.train(8, epoch=1, rank=r, world=2, repeats=repeats) for r in range(2)]
    joined = [sorted(numbers(a.images) + numbers(b.images)) for a, b in zip(*shares, strict=True)]
    assert joined == whole
    assert all(len(b) == 8 for b in joined)


def test_repeats_come_in_one_batch_and_an_epoch_is_as_long() -> None:
    batches = [numbers(b.images) for b in numbered(40).train(8, repeats=4)]
    assert len(batches) == 5
    assert all(len(set(b)) == 2 for b in batches)


def test_testing_sees_all_in_order_and_shares_without_loss() -> None:
    data = numbered(25)
    assert [n for b in data.test(8) for n in numbers(b.images)] == list(range(25))
    parts = [[n for b in data.test(8, rank=r, world=2) for n in numbers(b.images)] for r in (0, 1)]
    assert sorted(parts[0] + parts[1]) == list(range(25))


def test_change_sees_numbers_from_0_to_1_before_normalisation() -> None:
    data = numbered(8)
    (batch,) = data.train(8, change=lambda x: (x * 0 + 0.5) if 0 <= x.min() <= x.max() <= 1 else x)
    torch.testing.assert_close(batch.images, torch.full((8, 1, 2, 2), 127.5))


def test_statistics_are_those_of_the_pixels() -> None:
    images = torch.randint(0, 256, (50, 3, 4, 4), dtype=torch.uint8)
    mean, std = statistics(images)
    values = images.double() / 255
    torch.testing.assert_close(
        torch.tensor(mean, dtype=torch.float64), values.mean((0, 2, 3)), rtol=0, atol=1e-4
    )
    wanted = values.std((0, 2, 3), correction=0)
    torch.testing.assert_close(torch.tensor(std).double(), wanted, rtol=0, atol=1e-4)


def test_digits_are_split_for_good_and_normalised() -> None:
    data = load("digits")
    assert (len(data.train), len(data.test), len(data.classes)) == (1437, 360, 10)
    again = load("digits")
    (a,), (b,) = data.test.test(360), again.test.test(360)
    assert torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)
    every = torch.cat([b.images for b in data.train.test(2000)])
    assert abs(float(every.mean())) < 0.02 and abs(float(every.std()) - 1) < 0.02
    assert data.test.labels.bincount().min() > 20, "every class is tested"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"labels": torch.arange(4) + 7}, "label is 10, but there are 10 classes"),
        ({"labels": -torch.arange(4)}, "label is -3"),
        ({"labels": torch.arange(3)}, "4 images have 3 labels"),
        ({"labels": torch.arange(4.0)}, "int64"),
        ({"images": torch.zeros(4, 2, 2)}, "images must be"),
        ({"images": torch.zeros(4, 1, 2, 2, dtype=torch.int32)}, "int32"),
        ({"mean": [0.0, 0.0]}, "as many means"),
    ],
)
def test_impossible_images_are_refused(change: dict[str, object], words: str) -> None:
    right = {
        "images": torch.zeros(4, 1, 2, 2, dtype=torch.uint8),
        "labels": torch.arange(4),
        "classes": "0123456789",
        "mean": [0.0],
        "std": [1.0],
    }
    Loaded(**right)  # type: ignore[arg-type]
    with pytest.raises(obc.ObcError, match=words):
        Loaded(**{**right, **change})  # type: ignore[arg-type]


def test_impossible_batches_are_refused() -> None:
    with pytest.raises(obc.ObcError, match="more than the 10 samples"):
        next(numbered(10).train(11))
    with pytest.raises(obc.ObcError, match="shared by 3 processes"):
        next(numbered(10).train(4, world=3))
