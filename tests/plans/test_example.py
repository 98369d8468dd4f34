"""An example survives as its description: shapes, types, small integers, and nesting."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from obc import ObcError
from obc.plans.example import describe, rebuild
from tests.untouched import tensor

CPU = torch.device("cpu")


def back(example: Any, dtype: torch.dtype = torch.float32) -> Any:
    return rebuild(json.loads(json.dumps(describe(example))), CPU, dtype)


@pytest.mark.parametrize("value", [None, True, 3, 0.25, "mean"])
def test_values(value: Any) -> None:
    assert back({"x": value, "more": (value, [value])}) == {"x": value, "more": (value, [value])}


@pytest.mark.parametrize(
    "x",
    [
        torch.arange(12).view(3, 4),
        torch.tensor([[True, False]]),
        torch.tensor(7, dtype=torch.int32),
        torch.zeros(0, 3, dtype=torch.long),
    ],
)
def test_small_integers_are_kept(x: torch.Tensor) -> None:
    found = back(x)
    assert torch.equal(found, x) and found.dtype == x.dtype


def test_many_integers_keep_their_range() -> None:
    x = torch.arange(3, 9003)
    found = back(x)
    assert found.shape == x.shape and found.dtype == x.dtype
    assert int(found.min()) >= 3 and int(found.max()) <= 9002


def test_numbers_take_the_model_s_type_and_are_no_constants() -> None:
    found = back(torch.zeros(2, 3), torch.float64)
    assert found.dtype == torch.float64 and found.shape == (2, 3)
    assert found.std() > 0.1
    assert tensor(found)[2] == tensor(back(torch.ones(2, 3), torch.float64))[2], (
        "the same each time"
    )
    assert back(torch.zeros(2, 3, dtype=torch.complex64)).dtype == torch.complex64


def test_meta_tensors() -> None:
    spec = describe(torch.zeros(2, 3, dtype=torch.long, device="meta"))
    assert rebuild(spec, torch.device("meta"), torch.float32).is_meta


def test_anything_else_is_refused() -> None:
    with pytest.raises(ObcError, match="the example holds a set"):
        describe({"x": {1, 2}})
