"""Two real processes, DDP and FSDP, train an equivalently pruned network as one process does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import obc

NET = """
import sys, torch, obc
from torch import nn
from torch.nn import functional

def network():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32, 6), nn.ReLU(), nn.Linear(6, 5),
    ).double()
    sites = obc.trace(net, torch.zeros(1, 3, 4, 4, dtype=torch.float64))
    plan = obc.Plan.from_kept(sites, {s.name: range(0, s.size, 2) for s in sites})
    return obc.apply(net, plan, equivalent=True)

def data():
    random = torch.Generator().manual_seed(1)
    x = torch.randn(8, 3, 4, 4, generator=random, dtype=torch.float64)
    return x, torch.randint(0, 5, (8,), generator=random)

def train(net, x, y):
    step = torch.optim.SGD(obc.parameter_groups(net, 0.1, 1e-3, 0.05), momentum=0.9)
    for _ in range(3):
        step.zero_grad()
        functional.cross_entropy(net(x), y).backward()
        step.step()
    return net
"""

SCRIPT = (
    NET
    + """
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
rank, folder, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.set_num_threads(1)
distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
net = network()
x, y = (t[4 * rank : 4 * rank + 4] for t in data())
if how == "ddp":
    train(nn.parallel.DistributedDataParallel(net), x, y)
    state = net.state_dict()
else:
    mesh = distributed.device_mesh.init_device_mesh("cpu", (2,))
    for i in (0, 2, 5):
        fully_shard(net[i], mesh=mesh)
    train(fully_shard(net, mesh=mesh), x, y)
    state = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
if rank == 0:
    torch.save(dict(state), f"{folder}/state.pt")
distributed.barrier()
distributed.destroy_process_group()
"""
)


@pytest.mark.parametrize("how", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes_train_like_one(how: str, tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(r), str(tmp_path), how])
        for r in range(2)
    ]
    assert [p.wait(timeout=120) for p in ranks] == [0, 0]
    there = torch.load(tmp_path / "state.pt", weights_only=True)

    room: dict[str, object] = {"nn": nn, "functional": functional, "obc": obc}
    exec(NET, room)
    start, alone = room["network"](), room["network"]()  # type: ignore[operator]
    room["train"](alone, *room["data"]())  # type: ignore[operator]
    here, before = alone.state_dict(), start.state_dict()
    assert here.keys() == there.keys()
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=1e-9, atol=1e-12)
    assert sum(not torch.allclose(here[n], before[n]) for n in here) == len(here)

    start.load_state_dict(there)
    merged = obc.merge(start)
    x, _ = room["data"]()  # type: ignore[operator]
    torch.testing.assert_close(merged(x), alone(x), rtol=1e-9, atol=1e-12)
