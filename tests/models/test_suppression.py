"""Suppression against the greedy loop that defines it."""

from __future__ import annotations

import torch
from torch import Tensor

from obc.models.boxes import centred, cornered, overlap
from obc.models.suppression import MOST, detections, suppressed


def boxes(count: int, seed: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    low = 40 * torch.rand(count, 2, generator=random).double()
    size = 5 + 20 * torch.rand(count, 2, generator=random).double()
    return torch.cat([low, low + size], 1), torch.rand(count, generator=random).double()


def greedy(corners: Tensor, scores: Tensor, threshold: float) -> list[int]:
    kept: list[int] = []
    middles = centred(corners)
    overlaps = overlap(middles[:, None], middles[None]).tolist()
    for i in sorted(range(len(scores)), key=scores.tolist().__getitem__, reverse=True):
        if all(overlaps[i][k] <= threshold for k in kept):
            kept.append(i)
    return kept


def test_the_same_as_the_greedy_loop() -> None:
    for seed in range(4):
        corners, scores = boxes(60, seed)
        for threshold in (0.1, 0.3, 0.65):
            expected = greedy(corners, scores, threshold)
            assert 1 < len(expected) < 60
            assert suppressed(corners, scores, threshold).tolist() == expected
    assert suppressed(corners, -scores, 0.3).tolist() != greedy(corners, scores, 0.3)


def test_classes_do_not_suppress_each_other() -> None:
    corners, scores = boxes(40, 0)
    shares = torch.stack([scores, scores.flip(0)], 1)
    found = detections(corners - 30, shares)  # partly negative, as boxes at an edge are
    for label in (0, 1):
        mine = found.labels == label
        expected = greedy(corners, shares[:, label], 0.65)
        torch.testing.assert_close(found.boxes[mine] + 30, corners[expected])
        torch.testing.assert_close(found.scores[mine], shares[expected, label])
    assert (found.scores.diff() <= 0).all()


def test_nothing_and_too_much() -> None:
    none = detections(torch.zeros(5, 4), torch.zeros(5, 3))
    assert none.boxes.shape == (0, 4) and none.labels.shape == (0,)
    corners = torch.arange(300.0)[:, None] * 10 + torch.tensor([0.0, 0, 5, 5])
    assert len(detections(corners, torch.rand(300, 1) + 0.1).scores) == MOST


def test_corners_and_centres_are_inverse() -> None:
    corners, _ = boxes(10, 1)
    torch.testing.assert_close(cornered(centred(corners)), corners)
