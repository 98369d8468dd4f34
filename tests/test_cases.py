"""Holds the shared models to what other tests rely on: they run, and everything in them matters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.cases import CASES, Case, cases
from tests.parameters import parameters
from tests.sensitive import mapped, run, tensors


def outputs(model: torch.nn.Module, example: Any) -> list[Tensor]:
    """The floating tensors a model returns, without a gradient."""
    with torch.no_grad():
        return tensors(run(model, example))


def other(example: Any) -> Any:
    """An example of the same shapes with other contents; masks stay."""

    def change(x: Tensor) -> Tensor:
        return x + 0.5 * torch.cos(x) if x.is_floating_point() else x.flip(-1)

    return mapped(change, example)


class Singles(TorchDispatchMode):
    """Notes whether float64 is rounded to float32 on the way."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        kinds = [
            {leaf.dtype for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)}
            for tree in (args, result)
        ]
        self.found |= torch.float64 in kinds[0] and torch.float32 in kinds[1]
        return result


@pytest.mark.parametrize("case", parameters(*CASES))
def test_runs_and_depends_on_everything(case: Case) -> None:
    model, example = case.model(), case.example()
    assert not model.training
    for name, parameter in model.named_parameters():
        assert parameter.dtype == torch.float64, name
        assert parameter.ne(0).all(), f"{name} has zeros"
        if parameter.numel() > 1:
            assert parameter.std() > 1e-3, f"{name} is constant"
    with Singles() as singles:
        before = outputs(model, example)
    after = outputs(model, other(example))
    assert before
    for first, second in zip(before, after, strict=True):
        assert first.isfinite().all()
        assert 1e-3 < first.std() < 1e4, "the signal has vanished or exploded"
        assert (first - second).std() > 1e-2 * first.std(), "the output hardly depends on the input"
    assert distinct(before[0]), "two output channels are equal"
    assert singles.found == ("single" in case.tags), "float32 on the way, or no longer"


def distinct(output: Tensor) -> bool:
    """Whether no two channels of an output are the same, be they second or last."""
    channels = output.movedim(1 if output.ndim == 4 else -1, 0).flatten(1)
    gaps = torch.cdist(channels, channels) + torch.eye(len(channels)) * output.std()
    return bool((gaps > 1e-4 * output.std()).all())


@pytest.mark.parametrize("case", parameters(*cases("hand"), *cases("hf")))
def test_every_parameter_reaches_the_output(case: Case) -> None:
    model, example = case.model(), case.example()
    model.requires_grad_(True)
    torch.stack([t.square().sum() for t in tensors(run(model, example))]).sum().backward()
    missing = {n for n, p in model.named_parameters() if p.grad is None}
    assert bool(missing) == ("unused" in case.tags), missing
    # Biases may cancel: a key's within softmax, a convolution's before a norm over positions.
    weights = {n: p.grad for n, p in model.named_parameters() if p.grad is not None and p.ndim > 1}
    dead = {n for n, grad in weights.items() if not grad.abs().max() > 1e-9}
    assert not dead


@pytest.mark.parametrize("case", parameters(*cases("hand", "must")))
def test_built_alike_each_time(case: Case) -> None:
    state = torch.get_rng_state()
    first, second = case.build().state_dict(), case.build().state_dict()
    assert all(first[name].equal(second[name]) for name in first)
    assert torch.get_rng_state().equal(state)


def test_names_are_unique() -> None:
    names = [c.name for c in CASES]
    assert len(names) == len(set(names))
