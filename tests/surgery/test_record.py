"""A model remembers what was cut from it."""

import copy

import pytest
import torch
from torch import nn

import obc
from obc.surgery.record import applied


def two_layers() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def test_each_plan_is_remembered_in_order_and_copied_with_the_model():
    net, example = two_layers(), torch.zeros(1, 4)
    assert applied(net) == ()
    first = obc.Plan.from_kept(obc.trace(net, example), {"0": [0, 2, 5]})
    obc.apply(net, first)
    second = obc.Plan.from_kept(obc.trace(net, example), {"0": [1]})
    obc.apply(net, second)
    assert applied(copy.deepcopy(net)) == (first, second)
    assert set(net.state_dict()) == set(two_layers().state_dict())


def test_a_plan_that_failed_is_not_remembered():
    net = two_layers()
    plan = obc.Plan.from_kept(obc.trace(net, torch.zeros(1, 4)), {"0": [0]})
    obc.apply(net, plan)
    with pytest.raises(obc.ObcError):
        obc.apply(net, plan)
    assert applied(net) == (plan,)
