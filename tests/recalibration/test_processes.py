"""Two processes that share the batches fit what one does with all of them."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import obc
from obc.models.resnet import ResNet
from tests.reference import relative_error

SCRIPT = """
import sys, torch, obc
from torch import distributed
from safetensors.torch import save_file
from tests.recalibration.test_processes import models
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
net, small, batches = models()
torch.manual_seed(rank)  # what ranks draw elsewhere must not matter
if sys.argv[2] == "fail":
    def call(model, batch):
        if rank == 1:
            raise ValueError("only here")
        return model(batch)
    before = {n: t.clone() for n, t in small.state_dict().items()}
    try:
        obc.recalibrate(small, net, batches, call=call)
        sys.exit("nothing was raised")
    except (obc.ObcError, ValueError) as error:
        assert "another process" in str(error) or rank == 1, error
    assert all(torch.equal(t, before[n]) for n, t in small.state_dict().items())
else:
    obc.recalibrate(small, net, batches, residual=True)
    save_file(small.state_dict(), f"{sys.argv[1]}/{rank}.safetensors")
distributed.barrier()
distributed.destroy_process_group()
"""


def models() -> tuple[torch.nn.Module, torch.nn.Module, list[torch.Tensor]]:
    """A network, its cut copy, and batches of different sizes, an odd number of them."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(ResNet(1, 10, 1, 4), torch.nn.Sigmoid())  # its last layer: logits
    net(torch.randn(32, 1, 8, 8))
    net.double().eval()
    sites = obc.trace(net, torch.zeros(1, 1, 8, 8).double())
    plan = obc.Plan.from_kept(sites, {s.name: range(0, s.size, 2) for s in sites})
    batches = [torch.randn(n, 1, 8, 8).double() for n in (24, 16, 32)]
    return net, obc.apply(copy.deepcopy(net), plan), batches


def launch(folder: Path, how: str) -> None:
    script = folder / "rank.py"
    script.write_text(SCRIPT)
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        [sys.executable, *words, str(folder), how],
        timeout=300,
        capture_output=True,
        env=_with_this_folder(),
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def _with_this_folder() -> dict[str, str]:
    import os

    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}{os.pathsep}{root}"}


def test_two_are_one(tmp_path: Path) -> None:
    launch(tmp_path, "fit")
    first, second = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    net, small, batches = models()
    naive = small.state_dict()["0.fc.weight"].clone()
    account = obc.recalibrate(small, net, batches, residual=True)
    assert [fit.name for fit in account.fits if fit.note == "logits"] == ["0.fc.weight"]
    for name, tensor in small.state_dict().items():
        assert torch.equal(first[name], second[name]), name
        if tensor.is_floating_point():
            assert relative_error([tensor], [first[name]]) < 1e-8, name
    assert relative_error([naive], [first["0.fc.weight"]]) > 1e-3, "compares nothing"


@pytest.mark.slow
def test_a_failure_in_one_ends_both(tmp_path: Path) -> None:
    launch(tmp_path, "fail")
