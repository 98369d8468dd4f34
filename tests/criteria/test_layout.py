"""Another order in memory: only where it stays inside, and never for longer than a scoring."""

import pytest
import torch
from torch import nn

from obc.criteria.layout import may_be_channels_last, relaid
from obc.models import resnet20, vit_small

IMAGE = torch.randn(2, 3, 8, 8)


def memory(model: nn.Module) -> list[tuple[int, tuple[int, ...]]]:
    return [(p.data_ptr(), p.stride()) for p in model.parameters()]


def test_what_may_be_relaid():
    assert may_be_channels_last(resnet20(width=4), IMAGE)
    assert not may_be_channels_last(vit_small(image=8, patch=4, dim=12, depth=1, heads=2), IMAGE)
    assert not may_be_channels_last(nn.Linear(8, 8), IMAGE)
    assert not may_be_channels_last(nn.Conv2d(3, 4, 3), IMAGE), "its output would lie otherwise"


def test_code_that_asks_for_one_order_is_left_alone():
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 1)
            self.unused = nn.Conv2d(8, 8, 5)  # so that most weights are those of convolutions

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.conv(x).view(len(x), -1))

    assert not may_be_channels_last(Flat(), IMAGE)


def test_afterwards_every_parameter_is_the_memory_it_was():
    model = resnet20(width=4)
    before = memory(model)
    with pytest.raises(RuntimeError), relaid(model):
        assert memory(model) != before
        raise RuntimeError
    assert memory(model) == before
