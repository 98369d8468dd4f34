"""Scoring in two real processes gives the scores of one, and the same in both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import obc
from obc.models import resnet20

SCRIPT = """
import json, sys, torch, obc
from torch import distributed
from torch.nn import functional
from obc.models import resnet20
rank, world, folder, bad = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4] == "bad"
torch.set_num_threads(1)
meet = f"file://{folder}/meet"
distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=world)
torch.manual_seed(0)
net = resnet20(width=4).eval()
batches = [(torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))) for _ in range(int(sys.argv[5]))]
if bad and rank == 1:
    batches[1] = (batches[1][0] * float("nan"), batches[1][1])
sites = obc.trace(net, batches[0][0])
try:
    scores = obc.score(net, sites, batches, lambda m, b: functional.cross_entropy(m(b[0]), b[1]))
    result = {n: s.tolist() for n, s in scores.items()}
except obc.ObcError as error:
    result = {"error": str(error)}
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump(result, file)
distributed.barrier()  # a rank that leaves early would take the other's connection along
distributed.destroy_process_group()
"""


def run(folder: Path, bad: bool = False, batches: int = 5) -> list[dict[str, list[float]]]:
    script = folder / "rank.py"
    script.write_text(SCRIPT)
    flag = "bad" if bad else "good"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), str(r), "2", str(folder), flag, str(batches)]
        )
        for r in range(2)
    ]
    assert [p.wait(timeout=120) for p in ranks] == [0, 0]
    return [json.loads((folder / f"{r}.json").read_text()) for r in range(2)]


def alone(batches: int = 5) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    net = resnet20(width=4).eval()
    given = [(torch.randn(4, 3, 8, 8), torch.randint(0, 10, (4,))) for _ in range(batches)]
    sites = obc.trace(net, given[0][0])
    return obc.score(net, sites, given, lambda m, b: functional.cross_entropy(m(b[0]), b[1]))


@pytest.mark.parametrize("batches", [5, 1])
def test_two_processes_give_the_scores_of_one(tmp_path: Path, batches: int) -> None:
    first, second = run(tmp_path, batches=batches)
    assert first == second, "both ranks end with the same bits"
    for name, wanted in alone(batches).items():
        found = torch.tensor(first[name], dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6 * float(wanted.max()))


def test_an_error_in_one_process_ends_the_other(tmp_path: Path) -> None:
    first, second = run(tmp_path, bad=True)
    assert "another process" in first["error"]
    assert "nan" in second["error"]
