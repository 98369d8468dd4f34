"""What a trace offers, `obc.apply` takes: every site is cut once, each by a share of its own."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.tracing.tracer import Tracing
from obc.tracing.trial import Trial
from tests.nets.wrap import Wrap
from tests.reference import random_kept
from tests.untouched import untouched

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))


def layers(**more: nn.Module) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {"stem": nn.Linear(4, 12), "up": nn.Linear(12, 16), "down": nn.Linear(16, 3), **more}


Between = Callable[[Tensor], Tensor]
FACTORS: dict[str, Between] = {
    "root": lambda y: y / y.shape[1] ** 0.5,
    "product": lambda y: y * y.shape[1],
    "table": lambda y: y * torch.arange(1.0, y.shape[1] + 1),
    "ramp": lambda y: y + torch.linspace(0, 1, y.shape[1]),
    "total": lambda y: y + y.sum() / y.shape[0] / 100,
}


def net(between: Between, back: Between = lambda y: y) -> Wrap:
    return Wrap(
        lambda m, x: back(m.down(torch.relu(between(m.up(torch.relu(m.stem(x))))))), **layers()
    )


@pytest.mark.parametrize("kind", ["root", "product", "table", "ramp"])
@pytest.mark.parametrize("back", ["tensor", "index"])
def test_factors_of_the_width_freeze_it(kind: str, back: str) -> None:
    model = net(FACTORS[kind], (lambda y: y.argmax(1)) if back == "index" else lambda y: y)
    with untouched(model):
        sites = obc.trace(model, X)
    assert sites.names == ("stem",)
    (why,) = [f.reason for f in sites.frozen if f.layer == "up"]
    assert "differs from the masked" in why or "other whole numbers" in why
    obc.apply(model, obc.Plan.from_kept(sites, random_kept(sites)), example=X)


def test_sums_over_channels_are_no_factors() -> None:
    assert obc.trace(net(FACTORS["total"]), X).names == ("stem", "up")


def same_width(m: nn.Module, x: Tensor) -> Tensor:
    """The second branch takes its width from the first."""
    a, b = m.up(x), m.other(x)
    return m.down(torch.relu(a)) + m.last(torch.relu(b.view(len(x), a.shape[1])))


def test_widths_that_must_be_equal_go_together() -> None:
    torch.manual_seed(0)
    model = Wrap(
        same_width,
        up=nn.Linear(4, 16),
        other=nn.Linear(4, 16),
        down=nn.Linear(16, 3),
        last=nn.Linear(16, 3),
    )
    sites = obc.trace(model, X)
    assert [(s.name, s.size) for s in sites] == [("up", 16)]
    assert {m.layer for m in sites[0].members} == {"up", "other", "down", "last"}
    plan = obc.Plan.from_kept(sites, {"up": range(0, 16, 3)})
    obc.apply(model, plan)
    assert model.other.out_features == 6


def two_readouts(m: nn.Module, x: Tensor) -> Tensor:
    """Two branches take their width from the trunk, and an unrelated layer has a literal one."""
    trunk = torch.relu(m.trunk(x))
    a, b = (layer(x).view(len(x), trunk.shape[1]) for layer in (m.first, m.second))
    fixed = torch.relu(m.literal(x)).view(len(x), 10)
    return m.head(trunk) + m.head_a(torch.relu(a)) + m.head_b(torch.relu(b)) + m.last(fixed)


def test_three_widths_that_must_be_equal_go_together_beside_a_failure() -> None:
    torch.manual_seed(0)
    model = Wrap(
        two_readouts,
        **{name: nn.Linear(4, 16) for name in ("trunk", "first", "second")},
        **{name: nn.Linear(16, 3) for name in ("head", "head_a", "head_b")},
        literal=nn.Linear(4, 10),
        last=nn.Linear(10, 3),
    )
    sites = obc.trace(model, X)
    assert [(s.name, s.size) for s in sites] == [("trunk", 16)]
    assert {m.layer for m in sites[0].members if m.role == "out"} == {"trunk", "first", "second"}
    assert {f.layer for f in sites.frozen if f.reason != "model output"} == {"literal"}
    obc.apply(model, obc.Plan.from_kept(sites, {"trunk": range(0, 16, 3)}))


def test_unrelated_layers_stay_free_beside_a_failure() -> None:
    model = nn.Sequential(net(FACTORS["product"]), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    assert obc.trace(model, X).names == ("0.stem", "0.down", "1")


def test_an_example_that_shows_nothing_is_traced_all_the_same() -> None:
    assert obc.trace(net(lambda y: y), X * float("nan")).names == ("stem", "up")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_not_rehearsed(dtype: torch.dtype) -> None:
    model = net(lambda y: y).to(dtype)
    assert obc.trace(model, X.to(dtype)).names == ("stem", "up")


def test_a_plan_of_tied_sites_is_replayed_on_a_copy() -> None:
    """`apply` rehearses only where its own proof, or the names, ask for it."""
    model = net(lambda y: y)
    other = copy.deepcopy(model)
    sites = Tracing(model, X, rehearse=False).sites
    assert sites.names == obc.trace(model, X).names
    plan = obc.Plan.from_kept(sites, {"up": [1, 2]})
    assert obc.verify(other, obc.apply(model, plan), plan, X) < 1e-5


@pytest.mark.parametrize(
    ("model", "tried"),
    [
        (net(lambda y: y), False),
        (net(lambda y: y.view(2, 4, 4).transpose(1, 2).flatten(1)), True),
        (net(lambda y: y, lambda y: y * torch.nan), True),
        (net(FACTORS["root"]), True),
    ],
    ids=["plain", "reshaped", "nothing to compare", "not proven"],
)
def test_where_values_prove_the_cut_nothing_else_is_tried(
    model: nn.Module, tried: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where no size in the code shaped anything, and values were compared."""
    tries = []
    failures = Trial.failures

    def spy(self: Trial, *args: object) -> object:
        tries.append(args)
        return failures(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Trial, "failures", spy)
    obc.trace(model, X)
    assert bool(tries) is tried
