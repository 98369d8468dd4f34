"""Augmentation: labels say of mixed images what is in them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from obc.data.augment import Augment

CLASSES = 6


def augment(**fields: Any) -> Augment:
    return Augment((8, 8), CLASSES, **fields)


def flat(labels: Tensor) -> Tensor:
    """Images that are their label plus one, everywhere."""
    return (labels.float() + 1).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).clone()


@pytest.mark.parametrize("fields", [{"mixup": 0.8}, {"cutmix": 1.0}, {"mixup": 0.8, "cutmix": 1.0}])
def test_soft_labels_are_the_shares_of_the_pixels(fields: dict[str, float]) -> None:
    labels = torch.randint(0, CLASSES, (64,))
    change = augment(**fields)
    mixed = 0
    for _ in range(5):
        images, soft = change.mix(flat(labels), labels)
        torch.testing.assert_close(soft.sum(1), torch.ones(64))
        wanted = (soft * (torch.arange(CLASSES) + 1)).sum(1)
        torch.testing.assert_close(images.mean((1, 2, 3)), wanted)
        mixed += int((soft.max(1).values < 0.999).sum())
    assert mixed > 100, "most images are mixed"


def test_mixup_shares_follow_the_beta_distribution() -> None:
    # Zeros and ones in turn: half of the pairs differ, and show their share.
    labels = torch.arange(20000) % 2
    for alpha in (0.2, 0.8, 5.0):
        _, soft = augment(mixup=alpha).mix(labels.float().view(-1, 1, 1, 1), labels)
        shares = soft[:, 1][(soft[:, 1] > 0) & (soft[:, 1] < 1)].double()
        wanted = 1 / (4 * (2 * alpha + 1))  # the variance of Beta(α, α)
        assert float(shares.var()) == pytest.approx(wanted, rel=0.05)


def test_cutmix_takes_one_rectangle_of_another_image() -> None:
    labels = torch.arange(CLASSES)
    images, _ = augment(cutmix=1.0).mix(flat(labels), labels)
    for image in images:
        assert len(image.unique()) <= 2
        rows, columns = (image[0] != image[0].mode().values.mode().values).nonzero(as_tuple=True)
        if len(rows):
            area = (rows.max() - rows.min() + 1) * (columns.max() - columns.min() + 1)
            assert len(rows) in (int(area), 64 - int(area)) or area == 64


def test_erasing_puts_the_mean_colour_in_about_so_many_images() -> None:
    images, labels = augment(erasing=0.25).mix(torch.ones(1000, 3, 8, 8), torch.zeros(1000).long())
    touched = (images == 0).flatten(1).any(1).float().mean()
    assert 0.2 < float(touched) < 0.3
    assert labels.dtype == torch.int64, "labels stay as they are"


def test_views_keep_shapes_and_range() -> None:
    images = torch.rand(32, 3, 8, 8)
    found = augment(crop=2, flip=True, rand_augment=9).views(images)
    assert found.shape == images.shape
    assert float(found.min()) >= 0 and float(found.max()) <= 1
    assert not torch.equal(found, images)
    assert torch.equal(augment().views(images), images)


def test_flip_mirrors_about_half() -> None:
    images = torch.rand(1000, 1, 8, 8)
    found = augment(flip=True).views(images)
    mirrored = (found == images.flip(3)).flatten(1).all(1)
    assert 0.45 < float(mirrored.float().mean()) < 0.55
    assert torch.equal(found[~mirrored], images[~mirrored])


def test_crops_are_shifts() -> None:
    images = torch.rand(200, 1, 8, 8) + 0.1
    found = augment(crop=2).views(images)
    padded = torch.nn.functional.pad(images, [2] * 4)
    seen = set()
    for image, wide in zip(found, padded, strict=True):
        shifts = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if torch.equal(image, wide[:, i : i + 8, j : j + 8])
        ]
        assert len(shifts) == 1
        seen.add(shifts[0])
    assert len(seen) > 20
