"""A walk over modules is what torch's own is."""

from __future__ import annotations

from torch import nn

from obc.running.modules import named_tensors, walk


def shared() -> nn.Module:
    """Modules in several places, empty places, and names that are no numbers."""
    twice = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    net = nn.ModuleDict({"a": nn.Sequential(nn.ReLU(), twice), "b": nn.ModuleList([twice])})
    net["c"] = nn.Sequential(nn.Linear(4, 4), net["a"])
    net["c"].register_module("none", None)
    return net


def test_the_same_modules_in_the_same_order_by_the_same_names() -> None:
    net = shared()
    assert [(path, id(m)) for path, m in walk(net)] == [(n, id(m)) for n, m in net.named_modules()]


def test_the_same_tensors_by_the_same_names() -> None:
    net = shared()
    named = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    assert named_tensors(net).keys() == named.keys()
    assert all(named_tensors(net)[name] is tensor for name, tensor in named.items())
