"""Every criterion against the same thing written out over a dense Jacobian, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.running.forward import arguments, outputs
from tests import dense
from tests.cases import Case, case, cases
from tests.parameters import marks

ALL = [c for c in (*cases("hand"), *cases("hf")) if "slow" not in c.tags]
# One of each kind of layer and wiring, small enough to write every criterion out.
SMALL = [
    *("resnet_preactivation", "groups_two", "depthwise_multiplier", "transposed_groups"),
    *("squeeze_excite", "unet", "flatten_7x7", "dilated_1d", "volume_3d", "group_norm_each"),
    *("layer_norm", "rms_norm", "bare_scale", "bare_weights", "called_twice", "tied_embedding"),
    *("qkv_chunk", "mha", "encoder_layer", "gpt2", "bert", "c2f", "inplace_slice"),
]


def loss(model: nn.Module, batch: Any) -> Tensor:
    """A mean over samples of something that is not even in the outputs."""
    args, kwargs = arguments(batch)
    found = [t for t in outputs(model(*args, **kwargs)) if t.is_floating_point()]
    return sum((t.square() + t.sin()).flatten(1).mean(1).mean() for t in found)  # type: ignore


def batches(chosen: Case, count: int = 2) -> list[Any]:
    """The example, and the same with its samples in another order and other values."""
    example = chosen.example()
    return [_changed(example, i) for i in range(count)]


def _changed(value: Any, i: int) -> Any:
    if isinstance(value, Tensor):
        return value * (1 + 0.3 * i) if value.is_floating_point() else value.roll(i, 0)
    if isinstance(value, dict):
        return {k: _changed(v, i) for k, v in value.items()}
    return tuple(_changed(v, i) for v in value) if isinstance(value, tuple) else value


def tolerance(chosen: Case) -> float:
    return 1e-4 if "single" in chosen.tags else 1e-9


def check(found: dict[str, Tensor], wanted: dict[str, Tensor], rtol: float) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        scale = float(value[value.isfinite()].abs().max()) if value.isfinite().any() else 1.0
        torch.testing.assert_close(found[name].double(), value, rtol=rtol, atol=rtol * scale)


def prepared(name: str) -> tuple[Case, nn.Module, obc.Sites, list[Any]]:
    chosen = case(name)
    model = chosen.model()
    sites = obc.trace(model, chosen.example())
    return chosen, model, sites, batches(chosen)


@pytest.mark.parametrize("name", [pytest.param(c.name, marks=marks(c)) for c in ALL])
def test_streamed_products_are_those_of_weight_gradients(name: str) -> None:
    chosen, model, sites, data = prepared(name)
    if not sites:
        assert obc.score(model, sites, data, loss) == {}
        return
    for options in ({}, {"block": "group"}, {"diagonal_norm": True}):
        fast = obc.score(model, sites, data, loss, **options)
        slow = obc.score(model, sites, data, loss, fast=False, **options)
        check(fast, slow, tolerance(chosen))


@pytest.mark.parametrize("name", SMALL)
def test_jacobian_is_the_dense_one(name: str) -> None:
    chosen, model, sites, data = prepared(name)
    rows = dense.gradient_rows(model, data, loss)
    check(
        obc.score(model, sites, data, loss),
        dense.scores(model, sites, rows, dense.jacobian),
        tolerance(chosen),
    )
    check(
        obc.score(model, sites, data, loss, diagonal_norm=True),
        dense.scores(model, sites, rows, dense.jacobian_diagonal_norm),
        tolerance(chosen),
    )
    check(
        obc.score(model, sites, data, loss, block="group"),
        dense.jacobian_group(model, sites, rows),
        tolerance(chosen),
    )


@pytest.mark.parametrize("name", SMALL)
def test_sample_rows_and_hessian_are_those_of_single_samples(name: str) -> None:
    chosen, model, sites, data = prepared(name)
    sizes = [next(t.shape[0] for t in _tensors(b)) for b in data]
    rows = dense.gradient_rows(model, dense.single_samples(data, sizes), loss)
    check(
        obc.score(model, sites, data, loss, per_sample=True),
        dense.scores(model, sites, rows, dense.jacobian),
        tolerance(chosen),
    )
    check(
        obc.score(model, sites, data, loss, criterion="hessian"),
        dense.scores(model, sites, rows, dense.hessian),
        tolerance(chosen),
    )


@pytest.mark.parametrize("name", SMALL)
def test_expected_rows_are_those_of_single_samples(name: str) -> None:
    chosen, model, sites, data = prepared(name)
    sizes = [next(t.shape[0] for t in _tensors(b)) for b in data]
    rows = dense.gradient_rows(model, dense.single_samples(data, sizes), loss)
    check(
        obc.score(model, sites, data, loss, expected=True),
        dense.scores(model, sites, rows, dense.jacobian_expected(len(data))),
        tolerance(chosen),
    )


def _tensors(batch: Any) -> list[Tensor]:
    args, kwargs = arguments(batch)
    return [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("criterion", ["taylor", "l1", "l2", "fpgm", "whc", "bn_scale"])
def test_rivals_are_their_formulas(name: str, criterion: str) -> None:
    chosen, model, sites, data = prepared(name)
    rows = dense.gradient_rows(model, data, loss) if criterion == "taylor" else []
    if criterion == "bn_scale":
        sites = obc.Sites([s for s in sites if _norms_are_vectors(s)])
    wanted = dense.scores(model, sites, rows, getattr(dense, criterion))
    check(obc.score(model, sites, data, loss, criterion=criterion), wanted, tolerance(chosen))


def _norms_are_vectors(site: obc.Site) -> bool:
    return all(m.param in ("weight", "bias") for m in site.members if m.role == "norm")


def test_negative_control() -> None:
    """The comparison notices a single wrong row, sign or member."""
    _, model, sites, data = prepared("resnet_preactivation")
    rows = dense.gradient_rows(model, data, loss)
    found = obc.score(model, sites, data, loss)
    for broken in (
        dense.scores(model, sites, rows[:1], dense.jacobian),
        dense.scores(model, sites, rows, dense.taylor),
        dense.scores(model, sites, rows, dense.jacobian, aggregate=lambda s: sum(s[:-1])),
        {n: s.roll(1) for n, s in dense.scores(model, sites, rows, dense.jacobian).items()},
    ):
        with pytest.raises(AssertionError):
            check(found, broken, 1e-9)


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max"])
@pytest.mark.parametrize("normalize", ["none", "mean", "max"])
@pytest.mark.filterwarnings("ignore:mean aggregation")
def test_aggregation_and_normalisation(aggregate: str, normalize: str) -> None:
    _, model, sites, data = prepared("squeeze_excite")
    rows = dense.gradient_rows(model, data, loss)
    gather = {"sum": sum, "mean": lambda s: sum(s) / len(s), "max": max}[aggregate]
    wanted = dense.scores(model, sites, rows, dense.jacobian, gather)
    scale = {"none": lambda s: 1.0, "mean": torch.mean, "max": torch.max}[normalize]
    wanted = {n: s / scale(s) for n, s in wanted.items()}
    found = obc.score(model, sites, data, loss, aggregate=aggregate, normalize=normalize)
    check(found, wanted, 1e-9)


def test_jacobian_blocks_give_the_score() -> None:
    _, model, sites, data = prepared("resnet_preactivation")
    layer = sites[0].name
    found = obc.jacobian_blocks(model, sites, data, loss, layer)
    rows = dense.gradient_rows(model, data, loss)
    module = model.get_submodule(layer)
    names = [f"{layer}.{n}" for n, _ in module.named_parameters()]
    flat = [
        torch.cat([r[n].flatten(1) if r[n].ndim > 1 else r[n][:, None] for n in names], 1)
        for r in rows
    ]
    wanted = sum(torch.einsum("od,oe->ode", g, g) for g in flat)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=0)
    with pytest.raises(obc.ObcError, match="no layer"):
        obc.jacobian_blocks(model, sites, data, loss, "nowhere")
