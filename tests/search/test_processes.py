"""Under several processes every one reaches the same plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import obc

SCRIPT = """
import sys, torch, obc
from torch import distributed
from torch.nn import functional
from obc.models import resnet20
torch.set_num_threads(1)
distributed.init_process_group("gloo")
rank = distributed.get_rank()
torch.manual_seed(0)
net = resnet20(in_channels=1, width=4).eval()
data = [(torch.randn(4, 1, 8, 8), torch.randint(0, 10, (4,))) for _ in range(8)]
torch.manual_seed(rank)  # what ranks draw elsewhere must not matter
plan = obc.plan(
    net, torch.zeros(1, 1, 8, 8), data,
    lambda m, b: functional.cross_entropy(m(b[0]), b[1]),
    target="macs=2x", step=0.05, rows=3, carry=0.3, resume=sys.argv[1] + "/run",
)
plan.save(f"{sys.argv[1]}/{rank}.json")
distributed.barrier()
distributed.destroy_process_group()
"""


def test_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launch, str(script), str(tmp_path)], timeout=180, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    first, second = ((tmp_path / f"{r}.json").read_bytes() for r in range(2))
    assert first == second
    plan = obc.Plan.load(tmp_path / "0.json")
    assert plan.before is not None and plan.after is not None
    assert plan.before.macs / plan.after.macs >= 2
