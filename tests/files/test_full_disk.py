"""A disk that is full: an error in one sentence, the process lives, the old file is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import vision

# A limit on the size of files stands for the full disk: a write past it fails as one there does.
PROGRAM = """
import resource, signal, sys, torch, obc
from torch import nn

torch.manual_seed(0)
net, x = nn.Sequential(nn.Linear(64, 300), nn.ReLU(), nn.Linear(300, 200)), torch.rand(2, 64)
sites = obc.trace(net, x)
obc.apply(net, obc.Plan.from_kept(sites, {"0": range(250)}), example=x)
name = sys.argv[1]

def write():
    obc.save(net, name) if name.endswith("artifact") else obc.export(net, x, name)

write()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    write()
except obc.ObcError as error:
    print(error)
"""


@pytest.mark.parametrize(
    "name", ["artifact", "net.pt2", pytest.param("net.onnx", marks=pytest.mark.slow)]
)
def test_nothing_is_lost(tmp_path: Path, name: str) -> None:
    if name.endswith("onnx") and not all(map(vision.installed, ("onnxscript", "onnxruntime"))):
        pytest.skip("onnx is not installed")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    path = tmp_path / name
    done = subprocess.run(
        [sys.executable, program, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "cannot be written" in done.stdout and "what was there before is kept" in done.stdout
    files = [f for f in tmp_path.rglob("*") if f.is_file() and f != program]
    assert max(f.stat().st_size for f in files) > 20_000  # the first one, whole
    assert not [f for f in files if f.name.startswith(".")]
