"""Tensors that a model keeps from one run to the next hide nothing and outlive no cut."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.running.caches import empty_caches, held_tensors
from tests.nets.wrap import Wrap
from tests.untouched import untouched

X = torch.rand(2, 4)


class Cached(nn.Module):
    """Keeps a scale per channel once it has worked it out, as LeViT does with its biases."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(4, 16), nn.Linear(16, 3)
        self.scale = nn.Parameter(torch.rand(16))
        self.kind = kind
        self.cache: Any = None if kind == "tensor" else {} if kind == "dict" else []

    def forward(self, x: Tensor) -> Tensor:
        if not isinstance(self.cache, Tensor) and not self.cache:
            made = self.scale.exp()
            self.cache = made if self.kind == "tensor" else self.cache
            if self.kind == "dict":
                self.cache["made"] = made
            if self.kind == "list":
                self.cache.append(made)
        scale = self.cache if self.kind == "tensor" else self.values()[0]
        return self.down(self.up(x) * scale)

    def values(self) -> list[Tensor]:
        return list(self.cache.values()) if self.kind == "dict" else self.cache


KINDS = pytest.mark.parametrize("kind", ["tensor", "dict", "list"])
WARM = pytest.mark.parametrize("warm", [False, True])


def cached(kind: str, warm: bool) -> Cached:
    model = Cached(kind).eval()
    if warm:
        with torch.no_grad():
            model(X)
    return model


@KINDS
@WARM
def test_a_cache_is_traced_like_the_weights_it_came_from(kind: str, warm: bool) -> None:
    model = cached(kind, warm)
    with untouched(model):
        sites = obc.trace(model, X)
    assert [(s.name, s.size) for s in sites] == [("up", 16)]
    assert "scale" in {m.name for m in sites[0].members}


@KINDS
@WARM
def test_no_cache_outlives_a_cut(kind: str, warm: bool) -> None:
    model, cold = cached(kind, warm), cached(kind, False)
    plan = obc.Plan.from_kept(obc.trace(model, X), {"up": range(5)})
    obc.apply(model, plan)
    assert torch.equal(model(X), obc.apply(cold, plan)(X))


@KINDS
@WARM
def test_no_cache_outlives_a_load(kind: str, warm: bool, tmp_path: Path) -> None:
    saved = cached(kind, False)
    saved.scale.data.mul_(2)
    plan = obc.Plan.from_kept(obc.trace(saved, X), {"up": range(5)})
    obc.save(obc.apply(saved, plan), tmp_path)
    assert torch.equal(obc.load(cached(kind, warm), tmp_path)(X), saved(X))


def test_tensors_that_are_no_caches_stay() -> None:
    def run(m: nn.Module, x: Tensor) -> Tensor:
        m.latest = m.inner(x)
        return m.latest if m.mask is None else m.latest * m.mask

    model = Wrap(run, inner=nn.Linear(4, 3), mask=torch.ones(3), latest=torch.zeros(3))
    assert len(held_tensors(model)) == 2
    with untouched(model):
        empty_caches(model, X)


def test_a_model_that_is_slow_to_warm_up_is_traced() -> None:
    """Ultralytics' heads, YOLOv7: anchors are made in the first run, whatever the weights."""

    def run(m: nn.Module, x: Tensor) -> Tensor:
        if m.shape != x.shape:
            m.shape, m.anchors = x.shape, torch.arange(3.0).exp()
        return m.inner(x) + m.anchors

    inner = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    model = Wrap(run, inner=inner, shape=None, anchors=torch.zeros(0))
    with untouched(model):
        assert [s.name for s in obc.trace(model, X)] == ["inner.0"]


def test_a_cache_that_no_module_holds() -> None:
    memory: dict[str, Tensor] = {}

    def run(m: nn.Module, x: Tensor) -> Tensor:
        if "scale" not in memory:
            memory["scale"] = torch.arange(3.0).exp()
        return m.last(m.inner(x).view(-1, m.width)) * memory["scale"]

    model = Wrap(run, inner=nn.Linear(4, 8), last=nn.Linear(8, 3), width=8)
    assert [s.name for s in obc.trace(copy.deepcopy(model), X)] == ["inner"]
