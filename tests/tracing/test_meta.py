"""What is remembered of operators on the meta device is what they put out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from obc.tracing.meta import Shapes


class Compare(TorchDispatchMode):
    """Runs each operator by itself and, twice, by what is remembered."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes, self.compared = Shapes(), 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            return func(*args, **kwargs)
        made = func(*args, **kwargs)
        for _ in range(2):
            again = self.shapes.run(func, args, kwargs)
            assert type(again) is type(made)
            assert [facts(t) for t in tree_leaves(again)] == [facts(t) for t in tree_leaves(made)]
            self.compared += 1
        return made


def facts(tensor: Tensor) -> tuple[Any, ...]:
    """All that a tensor without values has."""
    return (tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor._is_view())


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, device="meta", dtype=dtype)


CALLS: dict[str, Callable[[], Any]] = {
    "product": lambda: meta(4, 3) @ meta(3, 5),
    "numbers": lambda: (meta(3, dtype=torch.long) * 2, meta(3, dtype=torch.long) * 2.0),
    "truth": lambda: (meta(3, dtype=torch.long) * 1, meta(3, dtype=torch.long) * True),
    "views": lambda: (
        meta(2, 6).view(2, 2, 3).transpose(1, 2)[:, 1:].unsqueeze(0).expand(4, 2, 2, 2)
    ),
    "parts": lambda: (meta(2, 6).split(4, 1), meta(2, 6).unbind(0), meta(6, 2).chunk(3)),
    "layouts": lambda: meta(2, 3).t() + meta(3, 2),
    "offsets": lambda: (meta(4)[1:], meta(5)[1:][1:]),
    "cat": lambda: torch.cat([meta(2, 3), meta(4, 3)]),
    "norm": lambda: torch.nn.functional.layer_norm(meta(2, 4), (4,), meta(4), meta(4)),
    "types": lambda: meta(3).to(torch.bfloat16) + meta(3, dtype=torch.bfloat16),
    "complex": lambda: torch.view_as_real(torch.view_as_complex(meta(3, 2))),
    "written": lambda: meta(3).add_(1).mul(2),
    "mixed": lambda: meta(3) * torch.tensor(2.0),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_same_as_running(name: str) -> None:
    with torch.no_grad(), Compare() as compare:
        CALLS[name]()
    assert compare.compared


def test_the_second_call_does_not_run() -> None:
    """Without this the comparison above compares an operator with itself."""
    shapes, x = Shapes(), meta(2, 3)
    ran: list[Any] = []

    class Spy:
        _schema = torch.ops.aten.mm.default._schema

        def __call__(self, *args: Any) -> Tensor:
            ran.append(args)
            return torch.ops.aten.mm.default(*args)

    spy = Spy()
    for _ in range(3):
        assert shapes.run(spy, (x, x.t()), {}).shape == (2, 2)
    assert len(ran) == 1
    shapes.run(spy, (x.t(), x), {})
    assert len(ran) == 2
