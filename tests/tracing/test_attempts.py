"""A trace tries few narrower models: it halves what fails, and sets only numbers that are read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import obc
from obc.running.progress import Patience
from obc.tracing.reads import recorded
from obc.tracing.trial import Trial
from tests.nets.wrap import Wrap

X = torch.rand(2, 4)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sites each attempt of a trace narrows."""
    counts: list[int] = []
    attempt = Trial._attempt

    def counted(self: Trial, units: Any, sites: Any, *rest: Any) -> Any:
        counts.append(len(sites))
        return attempt(self, units, sites, *rest)

    monkeypatch.setattr(Trial, "_attempt", counted)
    return counts


def chain(literal: int | None) -> nn.Module:
    """Twenty layers of different names; one of them has its width written down."""
    names = [f"{chr(97 + i)}_layer" for i in range(20)]

    def run(m: Any, x: Tensor) -> Tensor:
        for i, name in enumerate(names):
            x = F.relu(getattr(m, name)(x))
            if i == literal:
                x = x.view(len(x), 12)
        return m.last(x)

    sizes = [4, *(12 + i % 2 for i in range(20))]
    layers = {n: nn.Linear(a, b) for n, a, b in zip(names, sizes, sizes[1:], strict=False)}
    return Wrap(run, last=nn.Linear(sizes[-1], 3), **layers)


def test_what_fails_is_halved(attempts: list[int]) -> None:
    sites = obc.trace(chain(literal=10), X)
    assert len(sites) == 19 and sites.frozen[0].layer == "k_layer"
    assert len(attempts) < 15  # one after the other would be more than twenty


def test_without_failures_there_is_no_attempt_beside_the_rehearsal(attempts: list[int]) -> None:
    assert len(obc.trace(chain(literal=None), X)) == 20
    assert not attempts


class Config:
    """Forty numbers that could all be what counts channels."""

    number17: int

    def __init__(self) -> None:
        vars(self).update({f"number{i}": 12 for i in range(40)})


class Heads(nn.Module):
    """Reads one of the numbers."""

    def __init__(self, width: int, config: Any = None) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(4, 12), nn.Linear(12, 3)
        self.config = config or Config()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.relu(self.up(x).view(len(x), self.config.number17)))


def test_numbers_that_are_read_are_tried_first_and_the_others_never(attempts: list[int]) -> None:
    model = Heads(12)
    sites = obc.trace(model, X)
    assert "config.number17" in sites["up"].attributes
    assert len(attempts) <= 4
    obc.apply(model, obc.Plan.from_kept(sites, {"up": [1, 2, 7]}))
    assert model.config.number17 == 3 and model(X).shape == (2, 3)


def test_reads_are_recorded_and_classes_left_as_they_were() -> None:
    model = Heads(12)
    with recorded(model) as reads:
        model(X)
    assert (model.config, "number17") in reads
    assert (model.config, "number16") not in reads and (model, "width") not in reads
    assert "__getattribute__" not in vars(nn.Module) | vars(Config)


def test_of_what_cannot_be_watched_anything_may_be_read() -> None:
    model = Heads(12, SimpleNamespace(number17=12, other=12))
    with recorded(model) as reads:
        model(X)
    assert (model.config, "other") in reads and (model, "width") not in reads
    assert obc.trace(model, X).names == ("up",)


def test_a_line_comes_once_and_not_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    console = SimpleNamespace(print=lines.append)
    monkeypatch.setattr("obc.running.progress.terminal", lambda group: console)
    Patience(seconds=100).say("too early")
    late = Patience(seconds=-1)
    late.say("first")
    late.say("second")
    assert lines == ["first"]


class Mixed(nn.Module):
    """Parts of the channels go through layers of their own, by a list of sizes, as in MixNet."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes = sizes
        self.parts = nn.ModuleList(nn.Conv1d(n, n, 3, groups=n) for n in sizes)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(x, self.sizes, 1)
        return torch.cat([part(x) for part, x in zip(self.parts, parts, strict=True)], 1)


@pytest.mark.parametrize("sizes", [[8, 8], [9, 6]])
def test_sizes_in_a_list_follow(sizes: list[int]) -> None:
    width = sum(sizes)
    model = nn.Sequential(nn.Conv1d(3, width, 1), Mixed(sizes), nn.ReLU(), nn.Conv1d(width, 4, 1))
    x = torch.rand(2, 3, 5)
    sites = obc.trace(model, x)
    assert sum(s.size * s.members[0].index.shape[1] for s in sites) == width
    obc.apply(model, obc.Plan.from_kept(sites, {s.name: range(2) for s in sites}), example=x)
    assert model[1].sizes == [2, 2] and sizes[0] > 2
    assert model(x).shape == (2, 4, 3)
