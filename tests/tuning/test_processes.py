"""Two real processes follow one, agree to the last bit, and end together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.tuning.small import same

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import json, os, signal, sys, torch, obc
from safetensors.torch import save_file
from obc.tuning import run
from obc.tuning.learner import Learner
from tests.tuning.small import equivalent, images, net
torch.set_num_threads(1)
rank, folder, what = int(os.environ.get("RANK", 0)), sys.argv[1], sys.argv[2]
run.SAVE_STEPS = 2
losses, step = [], Learner.step
def kept(self, batch):
    losses.append(step(self, batch))
    return losses[-1]
Learner.step = kept
data, calls = images(80), []
def die(model):
    calls.append(1)
    if rank == 1 and len(calls) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
class Poisoned(type(data)):
    def normalised(self, pixels):
        calls.append(1)
        return super().normalised(pixels) * (float("nan") if rank and len(calls) == 3 else 1)
if what == "nan":
    data = Poisoned(data.images, data.labels, data.classes, data.mean, data.std)
model = net() if what == "norm" else equivalent(norm=False)
recipe = obc.Recipe(lr=0.1, epochs=2, batch_size=16, ema=0.9 if what == "norm" else None)
error, out = "", os.path.join(folder, "run")
if what == "full" and rank == 0:
    from obc.tuning import checkpoint
    def full(*given, **options):
        raise OSError(28, "No space left on device")
    checkpoint.save_file = full
try:
    callback = die if what == "die" else None
    obc.finetune(model, data, images(37), recipe, out=out, callback=callback, tracker=None)
    if what == "norm":  # and once more in the same processes
        obc.finetune(net(), data, None, recipe, out=out + "2", tracker=None)
except obc.ObcError as problem:
    error = str(problem)
with open(f"{folder}/{rank}.json", "w") as file:
    json.dump({"losses": losses, "error": error}, file)
save_file(model.state_dict(), f"{folder}/{rank}.safetensors")
sys.exit(bool(error))
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port: int = s.getsockname()[1]
        return port


def start(
    folder: Path, what: str, world: int, script: str = SCRIPT
) -> list[subprocess.Popen[bytes]]:
    folder.mkdir(exist_ok=True)
    (folder / "rank.py").write_text(script)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    base = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    port = str(free_port())
    found = []
    for rank in range(world):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
        meet = {"MASTER_ADDR": "localhost", "MASTER_PORT": port} if world > 1 else {}
        command = [sys.executable, str(folder / "rank.py"), str(folder), what]
        found.append(subprocess.Popen(command, env={**base, **(own | meet if world > 1 else {})}))
    return found


def run(folder: Path, what: str, world: int) -> list[dict[str, Any]]:
    codes = [p.wait(timeout=120) for p in start(folder, what, world)]
    found = [json.loads((folder / f"{r}.json").read_text()) for r in range(world)]
    assert codes == [int(bool(f["error"])) for f in found]
    return found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[float], dict[str, torch.Tensor]]:
    folder = tmp_path_factory.mktemp("alone")
    (one,) = run(folder, "plain", 1)
    return one["losses"], load_file(folder / "0.safetensors")


@pytest.mark.slow
def test_two_processes_at_half_the_batch_follow_one(
    tmp_path: Path, alone: tuple[list[float], dict[str, torch.Tensor]]
) -> None:
    losses, weights = alone
    first, second = run(tmp_path, "plain", 2)
    assert not first["error"] and not second["error"]
    assert len(losses) == 10
    assert max(abs(a - b) for a, b in zip(first["losses"], losses, strict=True)) < 1e-5
    assert max(losses) - min(losses) > 0.05, "there is a curve to follow"
    mine, other = (load_file(tmp_path / f"{r}.safetensors") for r in range(2))
    assert same(mine, other), "both ranks end with the same merged bits"
    for name, value in weights.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-4, atol=1e-5)
    history = json.loads((tmp_path / "run" / "result.json").read_text())["history"]
    assert len(history) == 2 and "top1" in history[0]


@pytest.mark.slow
def test_statistics_and_averages_agree(tmp_path: Path) -> None:
    run(tmp_path, "norm", 2)
    mine, other = (load_file(tmp_path / f"{r}.safetensors") for r in range(2))
    assert same(mine, other)
    assert mine["1.running_mean"].any(), "statistics were learned"


def test_one_process_dying_ends_the_other_with_an_error(tmp_path: Path) -> None:
    first, second = start(tmp_path, "die", 2)
    assert second.wait(timeout=120) == -9
    assert first.wait(timeout=60) == 1
    found = json.loads((tmp_path / "0.json").read_text())
    assert "another process has ended" in found["error"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("nan", ["loss is nan in epoch 1, step 3 of 5"] * 2),
        ("full", ["No space left on device", "the first process failed"]),
    ],
)
def test_both_stop_at_what_goes_wrong_in_one(what: str, words: list[str], tmp_path: Path) -> None:
    for found, wanted in zip(run(tmp_path, what, 2), words, strict=True):
        assert wanted in found["error"]


@pytest.mark.slow
def test_two_processes_go_on_together(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, "plain", 2)
    for process in start(parts, "die", 2):
        process.wait(timeout=120)
    assert (parts / "run" / "last.safetensors").is_file()
    first, _ = run(parts, "plain", 2)
    assert len(first["losses"]) == 8, "two steps were saved before one process died"
    mine, other = (load_file(f / "0.safetensors") for f in (whole, parts))
    assert same(mine, other)


@pytest.mark.slow
def test_torchrun_needs_no_change_of_code(
    tmp_path: Path, alone: tuple[list[float], dict[str, torch.Tensor]]
) -> None:
    (tmp_path / "rank.py").write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    given = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    command += [f"--master-port={free_port()}", str(tmp_path / "rank.py"), str(tmp_path), "plain"]
    subprocess.run(command, env=given, check=True, timeout=200)
    found = json.loads((tmp_path / "1.json").read_text())
    assert max(abs(a - b) for a, b in zip(found["losses"], alone[0], strict=True)) < 1e-5


SHARDED = """
import os, sys, torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from pathlib import Path
from obc.tuning import checkpoint
from tests.tuning.small import net
torch.set_num_threads(1)
rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (2,))
def made():
    model = net(norm=False)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)
def step(model, optimizer, seed):
    torch.manual_seed(seed)
    model(torch.randn(4, 1, 8, 8)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
def whole(model):
    return {n: p.full_tensor().clone() for n, p in model.named_parameters()}
model, optimizer = made()
for seed in range(3):
    step(model, optimizer, seed)
tensors = checkpoint.named("model", checkpoint.model_state(model))
tensors |= checkpoint.named("optimizer", checkpoint.optimizer_state(model, optimizer))
if rank == 0:
    checkpoint.write(folder / "it.safetensors", tensors, {})
distributed.barrier()
again, other = made()
read, _ = checkpoint.read(folder / "it.safetensors")
checkpoint.set_model_state(again, checkpoint.under("model", read))
checkpoint.set_optimizer_state(again, other, checkpoint.under("optimizer", read))
fresh, naked = made()
checkpoint.set_model_state(fresh, checkpoint.under("model", read))
for seed in range(3, 6):
    for m, o in ((model, optimizer), (again, other), (fresh, naked)):
        step(m, o, seed)
a, b, c = whole(model), whole(again), whole(fresh)
assert all(torch.equal(a[n], b[n]) for n in a), "the optimizer went on where it was"
assert not all(torch.equal(a[n], c[n]) for n in a), "which matters"
assert {n: t.shape for n, t in checkpoint.under("model", read).items()} == {
    n: t.shape for n, t in net(norm=False).state_dict().items()
}, "the file holds whole tensors"
distributed.barrier()
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_checkpoints_of_sharded_models_are_whole_and_go_on(tmp_path: Path) -> None:
    """accelerate knows FSDP on accelerators only, so what it needs of us is tried by itself."""
    ranks = start(tmp_path, "", 2, SHARDED)
    assert [p.wait(timeout=120) for p in ranks] == [0, 0]
