"""`kill -9` at random moments: started again and again, a run ends with the very same weights."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import sys, torch, obc
from obc.tuning import run
from tests.tuning.small import equivalent, images
torch.set_num_threads(1)
run.SAVE_STEPS = 3
recipe = obc.Recipe(
    lr=0.05, ep_lr=0.02, epochs=12, batch_size=16, schedule="cosine", warmup_epochs=2,
    warmup_factor=0.1, weight_decay=0.01, ema=0.9, clip=1.0, crop=1, flip=True, mixup=0.3,
)
print("ready", flush=True)
obc.finetune(equivalent(), images(160), images(40), recipe, out=sys.argv[1], tracker=None)
print("done", flush=True)
"""


def start(out: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(out)]
    return subprocess.Popen(command, env=given, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("kills", [1, pytest.param(12, marks=pytest.mark.slow)])
def test_a_killed_run_ends_with_the_same_bits(kills: int, tmp_path: Path) -> None:
    begin = 0.0
    with start(tmp_path / "whole") as whole:
        assert whole.stdout is not None and whole.stdout.readline() == "ready\n"
        begin = time.monotonic()
        assert whole.stdout.readline() == "done\n"
        took = time.monotonic() - begin
    draw, killed = random.Random(kills), 0
    while True:
        with start(tmp_path / "parts") as run:
            assert run.stdout is not None and run.stdout.readline() == "ready\n"
            if killed < kills:
                time.sleep(draw.uniform(0, took))
                killed += run.poll() is None
                run.kill()
                if run.wait() == 0:
                    break
                continue
            assert run.wait(timeout=120) == 0
            break
    assert killed, "it was killed at least once"
    for name in ("model.safetensors", "best.safetensors", "last.safetensors", "result.json"):
        a, b = ((tmp_path / n / name).read_bytes() for n in ("whole", "parts"))
        assert a == b, name


FULL = """
import resource, sys, torch, obc
from tests.tuning.small import images, net
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
recipe = obc.Recipe(lr=0.05, epochs=2, batch_size=16)
try:
    obc.finetune(net(), images(64), None, recipe, out=sys.argv[1], tracker=None)
except obc.ObcError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_file_that_cannot_grow_leaves_nothing_half_written(tmp_path: Path) -> None:
    """The operating system itself refuses: nothing is made up here."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    out = tmp_path / "run"
    said = {}
    for limit in (4000, 10**9):
        command = [sys.executable, "-c", FULL, str(out), str(limit)]
        done = subprocess.run(command, env=given, capture_output=True, text=True, check=True)
        said[limit] = done.stdout
        files = {f.name for f in out.iterdir()}
        assert not [f for f in files if f.startswith(".")]
        assert ("last.safetensors" in files) == (limit == 10**9)
    assert "last.safetensors cannot be written" in said[4000]
    assert said[10**9] == "", "with room again, the same run goes through"
