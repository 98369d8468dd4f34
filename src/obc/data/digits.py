"""The digits that come with scikit-learn: 1,797 real 8 x 8 images, split once and for all."""

from __future__ import annotations

import torch

from obc.data.images import Loaded
from obc.errors import ObcError

TRAIN = 1437  # four fifths


def digits() -> tuple[Loaded, Loaded]:
    """Training and test images."""
    try:
        from sklearn.datasets import load_digits  # type: ignore[import-untyped]
    except ImportError:
        raise ObcError(
            "the digits come with scikit-learn: pip install 'obc[demo]'",
            section="what-is-not-installed",
        ) from None
    bunch = load_digits()
    # Values run from 0 to 16.
    images = torch.tensor(bunch.images * (255 / 16)).round().to(torch.uint8)[:, None]
    labels = torch.tensor(bunch.target, dtype=torch.int64)
    # They are ordered by writer: unshuffled, the test would see other hands than the training.
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    names = [str(i) for i in range(10)]
    first, rest = (
        Loaded(images[i], labels[i], names, [0.3053], [0.3760])
        for i in (order[:TRAIN], order[TRAIN:])
    )
    return first, rest
