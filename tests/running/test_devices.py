"""No CPU tensor where a device is at work: on the meta device, and in collectives."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

import obc
from obc.running import processes
from tests.cases import case

ACCELERATOR = torch.device("meta")


class OneDevice(TorchDispatchMode):
    """Fails where an operator is given tensors of two devices, as a GPU's kernels do.

    A single number may come from the CPU, and copies between devices are what they are for.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.ndim]
        kinds = {t.device.type for t in tensors}
        if len(kinds) > 1 and func._schema.name not in ("aten::copy_", "aten::_to_copy"):
            raise RuntimeError(f"{func._schema.name} was given tensors on {sorted(kinds)}")
        return func(*args, **(kwargs or {}))


def test_the_mode_notices_a_tensor_on_another_device() -> None:
    with OneDevice(), pytest.raises(RuntimeError, match="index_select was given tensors on"):
        torch.empty(4, device="meta").index_select(0, torch.tensor([1]))


@pytest.mark.parametrize(
    "name", ["resnet20", "mobilenet_v2", "qkv_chunk", "layer_norm", "glu_chunk"]
)
@pytest.mark.parametrize("equivalent", [False, True])
def test_a_device_meets_its_own_tensors_only(name: str, equivalent: bool) -> None:
    net = case(name)
    model = net.model().to(ACCELERATOR)
    example = tree_map_only(Tensor, lambda t: t.to(ACCELERATOR), net.example())
    with OneDevice():
        sites = obc.trace(model, example)
        plan = obc.Plan.from_kept(sites, {s.name: range(max(1, s.size // 2)) for s in sites})
        pruned = obc.apply(copy.deepcopy(model), plan, example=example, equivalent=equivalent)
        obc.merge(pruned)
        assert obc.cost(pruned, example).macs < obc.cost(model, example).macs
    assert {t.device for t in pruned.parameters()} == {ACCELERATOR}


def test_a_second_device_scores_and_plans_what_the_cpu_does() -> None:
    """In a process of its own, for the device stays as long as its process."""
    program = [sys.executable, "-m", "tests.running.second_device"]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "the same" in done.stdout, done.stderr


# Collectives.


def there(tensor: Tensor) -> bool:
    return getattr(tensor, "moved", False)


@pytest.fixture
def picky(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two processes with a backend that refuses tensors which were not moved to its device."""
    calls: list[str] = []
    move = Tensor.to

    def to(self: Tensor, where: Any, *args: Any, **kwargs: Any) -> Tensor:
        if where is not ACCELERATOR:
            return move(self, where, *args, **kwargs)
        moved = self.clone()
        moved.moved = True  # type: ignore[attr-defined]
        return moved

    def collective(tensor: Tensor, *args: Any) -> None:
        if not there(tensor):
            raise RuntimeError("No backend type associated with device type cpu")
        calls.append("collective")

    monkeypatch.setattr(Tensor, "to", to)
    monkeypatch.setattr(processes, "device", lambda: ACCELERATOR)
    for name in ("all_reduce", "broadcast"):
        monkeypatch.setattr(distributed, name, collective)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(distributed, "get_world_size", lambda: 2)
    return calls


def test_collectives_are_given_tensors_of_their_device(picky: list[str]) -> None:
    with pytest.raises(RuntimeError, match="No backend type"):
        distributed.all_reduce(torch.ones(2))
    group = processes.Group()
    assert group.summed(torch.ones(2)).tolist() == [1, 1]
    assert group.largest(torch.ones(2)).tolist() == [1, 1]
    assert group.agreed(0.5) == 0.5
    assert group.added({"a": torch.ones(2, 3)}, {"a": 3})["a"].shape == (2, 3)
    with group.together():
        pass
    assert len(picky) >= 6


def test_all_collectives_go_through_the_group() -> None:
    source = Path(obc.__file__).parent
    direct = re.compile(r"distributed\.(all_|broadcast|reduce|gather|scatter)\w*\(")
    users = {p.name for p in source.rglob("*.py") if direct.search(p.read_text(encoding="utf-8"))}
    assert users == {"processes.py"}
