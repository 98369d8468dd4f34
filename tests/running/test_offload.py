"""Models that accelerate offloads: the same sites, scores, cuts and fits, in less memory."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import accelerate
import pytest
import torch
from torch import Tensor, nn

import obc
from tests import vision
from tests.hugging import decoder, import_transformers

X = torch.rand(2, 4, generator=torch.Generator().manual_seed(0))
CPU = torch.device("cpu")


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))


def loss(model: nn.Module, x: Tensor) -> Tensor:
    y: Tensor = model(x).square().mean()
    return y


def dispatched(way: str, folder: Path) -> nn.Module:
    if way == "memory":
        return accelerate.cpu_offload(mlp(), execution_device=CPU)
    if way == "disk":
        return accelerate.disk_offload(mlp(), folder, execution_device=CPU)
    parts = {"0": "cpu", "1": "cpu", "2": "disk", "3": "cpu", "4": "disk"}
    return accelerate.dispatch_model(mlp(), parts, main_device="cpu", offload_dir=folder)


def worked(model: nn.Module) -> tuple[Any, ...]:
    """What each verb makes of a model, and the model cut and recalibrated."""
    sites = obc.trace(model, X)
    batches = [torch.rand(16, 4, generator=torch.Generator().manual_seed(i)) for i in range(4)]
    scores = obc.score(model, sites, batches, loss)
    small = obc.apply(
        copy.deepcopy(model), obc.Plan.from_kept(sites, {"0": [0, 2, 3, 6], "2": [1, 2, 4, 5]})
    )
    cut = small(X)
    obc.recalibrate(small, model, batches, samples=64)
    plan = obc.plan(model, X, batches, loss, target="channels=50%", step=0.2)
    return scores, plan.kept, cut, small(X), obc.cost(model, X), small


def devices(model: nn.Module) -> list[str]:
    return [p.device.type for p in model.parameters()]


@pytest.mark.parametrize("way", ["memory", "disk", "some"])
def test_the_same_as_in_memory(way: str, tmp_path: Path) -> None:
    expected, model = worked(mlp()), dispatched(way, tmp_path)
    before, where = model(X), devices(model)
    hooks = {n: (m._hf_hook, m.forward) for n, m in model.named_modules() if hasattr(m, "_hf_hook")}
    scores, kept, cut, fitted, cost, small = worked(model)
    assert scores and all(torch.equal(scores[n], values) for n, values in expected[0].items())
    assert (kept, cost) == (expected[1], expected[4])
    assert torch.equal(cut, expected[2]) and torch.equal(fitted, expected[3])
    assert not torch.equal(cut, fitted), "the fit must have reached the weights"
    assert "meta" in where and devices(model) == where == devices(small)
    assert torch.equal(model(X), before), "neither model nor its files were touched"
    for name, (hook, forward) in hooks.items():
        module = model.get_submodule(name)
        assert module._hf_hook is hook and module.forward is forward


def test_a_failed_verb_leaves_it_dispatched(tmp_path: Path) -> None:
    model = dispatched("disk", tmp_path)
    before, kept = model(X), {"0": [0, 2, 3, 6]}
    plan = obc.Plan.from_kept(obc.trace(model, X), kept)
    with pytest.raises(obc.ObcError, match="C and D would take its place"):
        obc.apply(model, plan, equivalent=True)
    with pytest.raises(obc.ObcError, match="division by zero"):
        obc.score(model, obc.trace(model, X), [X], lambda *_: 1 / 0)
    assert devices(model) == ["meta"] * 6 and torch.equal(model(X), before)


def test_offloaded_from_another_device(tmp_path: Path) -> None:
    model = dispatched("disk", tmp_path)
    model[0]._hf_hook.execution_device = torch.device("cuda:0")
    with pytest.raises(obc.ObcError, match="'0' is offloaded from cuda:0; load the model with"):
        obc.trace(model, X)


# More than fits.

LIMITED = """
import copy, resource, sys
import torch
torch.set_num_threads(1)
import obc
from tests.hugging import import_transformers

hf = import_transformers()
folder, scratch, room = sys.argv[1], sys.argv[2], int(sys.argv[3])
ids = torch.arange(128).reshape(8, 16) % 53
load = hf.AutoModelForCausalLM.from_pretrained
warm = hf.LlamaForCausalLM(hf.LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1,
    num_attention_heads=1, vocab_size=53))
obc.score(warm, obc.trace(warm, ids), [ids], lambda m, x: m(x, labels=x).loss)  # its own memory
whole = len(sys.argv) > 4
if not whole:  # transformers maps all files of a folder to learn what is in them
    model = load(folder, device_map={"": "disk"}, offload_folder=scratch).eval()
used = next(int(x.split()[1]) << 10 for x in open("/proc/self/status") if x.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + room, resource.RLIM_INFINITY))
if whole:
    print(load(folder)(ids).logits.shape)
    sys.exit()
sites = obc.trace(model, ids[:1, :4])
batches = [ids, ids.flip(1)]
ffn = [s for s in sites if s.size == 1020]
scores = obc.score(model, sites, batches, lambda m, x: m(x, labels=x).loss)
kept = {s.name: scores[s.name].topk(768).indices.sort().values.tolist() for s in ffn}
small = obc.apply(copy.deepcopy(model), obc.Plan.from_kept(sites, kept))
print(small.model.layers[0].mlp.up_proj.weight.shape, {p.device.type for p in small.parameters()})
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="limits of Linux")
@pytest.mark.skipif(not vision.installed("transformers"), reason="transformers is not installed")
def test_weights_that_exceed_the_memory(tmp_path: Path) -> None:
    import_transformers()
    sizes = {"hidden_size": 1024, "intermediate_size": 1020, "num_hidden_layers": 10}
    model = decoder("Llama", **sizes)
    model.save_pretrained(tmp_path / "model", max_shard_size="20MB")
    weights = sum(p.numel() * 4 for p in model.parameters())
    assert weights > 270 << 20

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        room = str(weights * 9 // 10)
        command = [sys.executable, "-c", LIMITED, str(tmp_path / "model"), str(tmp_path), room]
        return subprocess.run(
            [*command, *arguments],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        )

    whole = run("whole")
    assert whole.returncode and "memory" in whole.stderr.lower(), "the limit must be one"
    done = run()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[768, 1024]) {'meta'}" in done.stdout
