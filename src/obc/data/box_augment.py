"""The few augmentations that a short tuning of a detector needs: flip, scale, shift, colours."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

SCALE, SHIFT = 0.5, 0.1  # from half to one and a half times the size; a tenth of each side
COLOURS = (0.015, 0.7, 0.4)  # hue, saturation and value, as in YOLOv7's recipes
_GREY = 114 / 255
_LEFT = 0.2  # a box of which less is left in the image is no box any more


def augmented(
    images: Tensor, boxes: Tensor, labels: Tensor, random: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Images mirrored half of the time, scaled, moved and recoloured, with their boxes.

    Boxes that have (nearly) left their image get the label −1.

    >>> images, boxes = torch.rand(2, 3, 32, 32), torch.tensor([[[8.0, 8, 24, 24]]] * 2)
    >>> labels = torch.zeros(2, 1, dtype=torch.long)
    >>> [
    ...     x.shape == y.shape
    ...     for x, y in zip(
    ...         augmented(images, boxes, labels, torch.Generator()), (images, boxes, labels)
    ...     )
    ... ]
    [True, True, True]
    """
    count = len(images)
    draws = torch.rand(count, 7, generator=random)
    signs = torch.where(draws[:, 0] < 0.5, -1.0, 1.0)
    scales = 1 + SCALE * (2 * draws[:, 1] - 1)
    shifts = 2 * SHIFT * (2 * draws[:, 2:4] - 1)  # the image reaches from −1 to 1
    images = _recoloured(images, 2 * draws[:, 4:] - 1)
    images, boxes, left = _moved(images, boxes, signs, scales, shifts)
    return images, boxes, torch.where(left >= _LEFT, labels, torch.full_like(labels, -1))


def _moved(
    images: Tensor, boxes: Tensor, signs: Tensor, scales: Tensor, shifts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Images and boxes under x → ± s x + t, and the share of each box that is left."""
    stretch = torch.stack([signs * scales, scales], 1)
    # `affine_grid` asks where each new position comes from, which is the inverse.
    matrices = torch.zeros(len(images), 2, 3)
    matrices[:, 0, 0], matrices[:, 1, 1] = 1 / stretch[:, 0], 1 / stretch[:, 1]
    matrices[:, :, 2] = -shifts / stretch
    grid = F.affine_grid(matrices, list(images.shape), align_corners=False)
    drawn = F.grid_sample(images - _GREY, grid, align_corners=False) + _GREY
    size = torch.tensor([images.shape[3], images.shape[2]], dtype=boxes.dtype)
    unit = boxes.view(*boxes.shape[:2], 2, 2) / size * 2 - 1
    unit = unit * stretch[:, None, None] + shifts[:, None, None]
    corners = (unit + 1) / 2 * size
    low, high = corners.amin(2), corners.amax(2)
    area = (high - low).prod(-1).clamp(min=1e-9)
    low, high = (x.clamp(min=0).minimum(size) for x in (low, high))
    return drawn, torch.cat([low, high], -1), (high - low).prod(-1) / area


def _recoloured(images: Tensor, draws: Tensor) -> Tensor:
    """Hue turned, saturation and value multiplied, by up to `COLOURS`."""
    from kornia.color import hsv_to_rgb, rgb_to_hsv  # takes as long to import as torch itself

    gains = draws * torch.tensor(COLOURS)
    hue, saturation, value = rgb_to_hsv(images).unbind(1)
    turn = 2 * torch.pi * gains[:, 0, None, None]
    hue = (hue + turn) % (2 * torch.pi)
    saturation = (saturation * (1 + gains[:, 1, None, None])).clamp(0, 1)
    value = (value * (1 + gains[:, 2, None, None])).clamp(0, 1)
    recoloured: Tensor = hsv_to_rgb(torch.stack([hue, saturation, value], 1))
    return recoloured
