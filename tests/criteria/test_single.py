"""Gradients of single samples, for models that can and cannot run their samples together."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from obc.criteria.single import per_sample, squares
from tests.nets.mixtures import MaskedMixture, Mixture, MixtureNet, SharedMixture, SortedMixture


def loss(net: nn.Module, x: Tensor) -> Tensor:
    value: Tensor = net(x).square().mean()
    return value


def by_hand(net: nn.Module, x: Tensor, names: list[str]) -> dict[str, Tensor]:
    """One backward pass for each sample."""
    rows: dict[str, list[Tensor]] = {name: [] for name in names}
    for sample in x:
        net.zero_grad()
        loss(net, sample[None]).backward()
        for name in names:
            gradient = net.get_parameter(name).grad
            rows[name].append(
                torch.zeros_like(net.get_parameter(name)) if gradient is None else gradient.clone()
            )
    net.zero_grad()
    return {name: torch.stack(gradients) for name, gradients in rows.items()}


@pytest.mark.parametrize("kind", [MaskedMixture, SortedMixture, SharedMixture])
def test_experts_that_look_at_values(kind: type[Mixture]) -> None:
    """Rows are sent to experts by code that asks for numbers: by masks, or through `tolist`."""
    torch.manual_seed(0)
    net, x = MixtureNet(kind, (12,) * 5).double().eval(), torch.randn(6, 6, dtype=torch.float64)
    names = [name for name, _ in net.named_parameters()]
    expected = by_hand(net, x, names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gradients, total = per_sample(net, loss, x, names), squares(net, loss, x, names)
    for name in names:
        torch.testing.assert_close(gradients[name], expected[name])
        torch.testing.assert_close(total[name], expected[name].square().sum(0))
    whole = expected["head.weight"].sum(0).square()
    assert not torch.allclose(total["head.weight"], whole)  # squares of single ones are not it


def test_a_sample_that_reaches_no_named_parameter() -> None:
    """Its gradient is zero, also where the samples run one by one."""
    torch.manual_seed(0)
    net = MixtureNet(SortedMixture, (12,) * 5).double().eval().requires_grad_(False)
    x = torch.randn(6, 6, dtype=torch.float64)
    names = [next(n for n, _ in net.named_parameters() if ".experts.0." in n)]
    net.get_parameter(names[0]).requires_grad_()
    with pytest.warns(UserWarning, match="one by one"):
        gradients = per_sample(net, loss, x, names)[names[0]]
    reached = gradients.flatten(1).any(1)
    assert reached.any() and not reached.all()


def test_an_error_of_the_loss_is_raised_as_it_is() -> None:
    net, x = nn.Linear(3, 2), torch.randn(4, 3)
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="not today"):
        squares(net, lambda model, batch: _refuse(), x, ["weight"])


def _refuse() -> Tensor:
    raise RuntimeError("not today")
