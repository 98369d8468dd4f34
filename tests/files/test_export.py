"""Exported files compute what the model does, for any batch; what does not is never written."""

from __future__ import annotations

import copy
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import obc
from obc.files import formats
from obc.files.inputs import Inputs
from tests import vision
from tests.cases import Case, case
from tests.files.kept import prune
from tests.parameters import parameters
from tests.sensitive import run, tensors
from tests.untouched import untouched

needs_onnx = pytest.mark.skipif(
    not all(vision.installed(n) for n in ("onnx", "onnxscript", "onnxruntime")),
    reason="onnx is not installed",
)
X = torch.randn(1, 3, 6, 6)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.drop, self.second = nn.Dropout(0.5), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.first(x))).mean((2, 3))
        found: Tensor = self.second(self.drop(x))
        return found


def nets() -> tuple[nn.Module, nn.Module]:
    """A model before and after pruning, still in training mode."""
    original = Net()
    return original, prune(copy.deepcopy(original), X)


def onnx_outputs(path: Path, x: Tensor) -> Tensor:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    return torch.from_numpy(found)


def pt2_outputs(path: Path, x: Tensor) -> Tensor:
    found: Tensor = torch.export.load(path).module()(x)
    return found


SUFFIXES = [pytest.param(".onnx", marks=needs_onnx), ".pt2"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_file_computes_what_the_model_does(suffix: str, tmp_path: Path) -> None:
    _, model = nets()
    path = tmp_path / f"model{suffix}"
    with untouched(model):
        done = obc.export(model, X, path)
    assert os.listdir(tmp_path) == [path.name]
    assert done.path == path and done.error < 1e-5
    assert done.pruned.bytes == path.stat().st_size and done.pruned.seconds > 0
    assert done.original is None and "original" not in str(done)
    again = onnx_outputs if suffix == ".onnx" else pt2_outputs
    x = torch.randn(7, 3, 6, 6)
    with torch.no_grad():
        assert torch.allclose(again(path, x), model.eval()(x), atol=1e-5)


def test_beside_the_original(tmp_path: Path) -> None:
    original, model = nets()
    with untouched(original, model):
        done = obc.export(model, X, str(tmp_path / "model.pt2"), original=original)
    assert os.listdir(tmp_path) == ["model.pt2"]
    assert done.original is not None and done.original.bytes > done.pruned.bytes
    assert [line.split()[0] for line in str(done).splitlines()[1:]] == ["original", "pruned"]


def test_a_loaded_model_is_exported(tmp_path: Path) -> None:
    _, model = nets()
    obc.save(model, tmp_path / "saved")
    loaded = obc.load(Net(), tmp_path / "saved")
    obc.export(loaded, X, tmp_path / "model.pt2")
    with torch.no_grad():
        assert torch.equal(pt2_outputs(tmp_path / "model.pt2", X), model.eval()(X))


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    parameters(
        *map(case, ("resnet56", "vgg19", "mobilenet_v2", "vit", "llama_gqa", "mha", "bert"))
    ),
)
@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_models_people_export(case: Case, suffix: str, tmp_path: Path) -> None:
    model, example = case.model(), case.example()
    original = copy.deepcopy(model).float()
    model = prune(model, example).float()
    example = Inputs(example).of(2) if isinstance(example, dict) else example.float()
    done = obc.export(model, example, tmp_path / f"model{suffix}", original=original)
    assert done.error < 1e-4 and os.listdir(tmp_path) == [f"model{suffix}"]
    assert done.original is not None and done.pruned.bytes < done.original.bytes


# What is wrong is not written.


def wrong_weights(program: Any, path: Path) -> None:
    for name, tensor in program.state_dict.items():
        if isinstance(tensor, nn.Parameter):
            program.state_dict[name] = nn.Parameter(tensor * 1.01)
    formats.write_pt2(program, path)


def only_for_its_own_batch(path: Path) -> Any:
    right = formats.run_pt2(path)
    return lambda example: [t[:2] for t in right(example)]


def only_for_even_batches(path: Path) -> Any:
    right = formats.run_pt2(path)

    def run(example: Tensor) -> list[Tensor]:
        if len(example) == 3:
            raise RuntimeError("no kernel")
        return right(example)

    return run


@pytest.mark.parametrize(
    ("write", "read", "text"),
    [
        (
            wrong_weights,
            formats.run_pt2,
            "batch of 1: it differs from the model by .*, more than rounding",
        ),
        (
            formats.write_pt2,
            only_for_its_own_batch,
            r"batch of 3: it puts out \[\(2, 4\)\] instead of \[\(3, 4\)\]",
        ),
        (formats.write_pt2, only_for_even_batches, "batch of 3: it does not run: no kernel"),
    ],
)
def test_a_file_that_computes_something_else_is_not_kept(
    write: Any, read: Any, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = nets()
    path = tmp_path / "model.pt2"
    obc.export(model, X, path)
    before = path.read_bytes()
    monkeypatch.setitem(formats.FORMATS, ".pt2", formats.Format(write, read))
    for target in (path, tmp_path / "new.pt2"):
        with pytest.raises(obc.ObcError, match=text):
            obc.export(model, X, target)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["model.pt2"]


def lets_rounding_grow(condition: float) -> nn.Sequential:
    """A matrix and its inverse, 1 up to rounding times the condition number."""
    torch.manual_seed(0)
    one, two = (torch.linalg.qr(torch.randn(32, 32, dtype=torch.float64))[0] for _ in range(2))
    weight = one @ torch.diag(torch.logspace(0, -math.log10(condition), 32).double()) @ two
    model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.Linear(32, 32, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(weight)
        model[1].weight.copy_(torch.linalg.inv(weight))
    return model


def other_order(path: Path) -> Any:
    """A runtime that adds up in another order: by halves."""
    weights = [w.detach() for w in torch.export.load(path).parameters()]

    def run(x: Tensor) -> list[Tensor]:
        for w in weights:
            x = x[:, :16] @ w.T[:16] + x[:, 16:] @ w.T[16:]
        return [x]

    return run


def test_a_file_is_judged_by_the_models_own_rounding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.rand(2, 32)
    model = lets_rounding_grow(1e5)
    monkeypatch.setitem(formats.FORMATS, ".pt2", formats.Format(formats.write_pt2, other_order))
    done = obc.export(model, x, tmp_path / "grows.pt2")
    assert 4e-4 < done.error < 0.05  # more than is allowed to others
    assert obc.export(lets_rounding_grow(10), x, tmp_path / "calm.pt2").error < 1e-5
    # A file with other weights is as wrong for either.
    monkeypatch.setitem(formats.FORMATS, ".pt2", formats.Format(wrong_weights, other_order))
    for condition in (10, 1e5):
        with pytest.raises(obc.ObcError, match=r"more than rounding: from double precision"):
            obc.export(lets_rounding_grow(condition), x, tmp_path / "wrong.pt2")
    # Where rounding is all there is, no file can be told from another.
    with pytest.raises(obc.ObcError, match=r"own rounding, .*, is too much to compare by"):
        obc.export(lets_rounding_grow(1e9), x, tmp_path / "blurred.pt2")
    assert sorted(os.listdir(tmp_path)) == ["calm.pt2", "grows.pt2"]


class Fixed(Net):
    """Writes its batch into the code."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).view(2, 4)


class Asks(Net):
    """Goes another way for other numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


def test_models_that_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(obc.ObcError, match=r"no \.pt2 of this model: "):
        obc.export(Asks().eval(), torch.randn(2, 3, 6, 6), tmp_path / "model.pt2")
    assert os.listdir(tmp_path) == []


def test_a_batch_in_the_code_is_the_files_batch(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="a batch of 2 and no other"):
        done = obc.export(Fixed().eval(), torch.randn(2, 3, 6, 6), tmp_path / "model.pt2")
    assert done.batch == 2


def test_bad_input(tmp_path: Path) -> None:
    _, model = nets()
    for path, example, text in [
        (tmp_path / "model.pth", X, r"model\.pth ends in none of \.onnx, \.pt2"),
        (tmp_path / "no" / "model.pt2", X, "no folder"),
        (tmp_path / "model.pt2", torch.zeros(()), "no tensor with a batch dimension"),
        (tmp_path / "model.pt2", X[:0], "batch is empty"),
        (tmp_path / "model.pt2", torch.zeros(1, 2, 6, 6), "the model rejects the example"),
    ]:
        with pytest.raises(obc.ObcError, match=text):
            obc.export(model, example, path)
    assert os.listdir(tmp_path) == []


def test_factors_are_merged_first(tmp_path: Path) -> None:
    model = Net()
    sites = obc.trace(model, X)
    obc.apply(model, obc.Plan.from_kept(sites, {"first": range(4)}), equivalent=True)
    with pytest.raises(obc.ObcError, match=r"obc\.merge\(model\) first"):
        obc.export(model, X, tmp_path / "model.pt2")
    obc.export(obc.merge(model), X, tmp_path / "model.pt2")


@pytest.mark.parametrize("name", ["onnx", "onnxscript", "onnxruntime"])
def test_onnx_is_an_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(obc.ObcError, match=rf"ONNX needs {name}, .*pip install 'obc\[onnx\]'"):
        obc.export(nets()[1], X, tmp_path / "model.onnx")
    assert os.listdir(tmp_path) == []


# Fresh inputs.


def test_fresh_inputs_are_other_numbers_but_no_other_ids() -> None:
    ids, mask = torch.tensor([[5, 9, 11], [40, 2, 9]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    inputs = Inputs({"x": torch.randn(2, 4) * 3 + 9, "ids": ids, "mask": mask, "flag": True})
    fresh = inputs.fresh(6)
    assert {k: v.shape for k, v in fresh.items() if k != "flag"} == {
        "x": (6, 4),
        "ids": (6, 3),
        "mask": (6, 3),
    }
    assert 5 < fresh["x"].mean() < 13 and not torch.equal(fresh["x"][:2], inputs.example["x"])
    assert set(fresh["ids"].reshape(-1).tolist()) <= set(ids.reshape(-1).tolist())
    assert torch.equal(fresh["mask"][:2], mask) and fresh["flag"] is True
    assert Inputs(torch.zeros(2, 4)).fresh(3).std() > 0.1


def test_inputs_by_position_and_by_name(tmp_path: Path) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 8)
            self.last = nn.Linear(8, 2)

        def forward(self, x: Tensor, *, scale: Tensor, double: bool = False) -> dict[str, Tensor]:
            y = self.last(torch.relu(self.layer(x)) * scale)
            return {"y": y * 2 if double else y, "sum": y.sum(1)}

    example = {"x": torch.randn(3, 4), "scale": torch.randn(1), "double": True}
    model = prune(Two(), example)
    done = obc.export(model, example, tmp_path / "a.pt2")
    assert done.error == 0
    other = {**example, "x": torch.randn(5, 4), "scale": torch.ones(1)}
    found = torch.export.load(tmp_path / "a.pt2").module()(**other)
    expected = tensors(run(model, other))
    assert all(torch.equal(a, b) for a, b in zip(found.values(), expected, strict=True))


class Anchored(nn.Module):
    """Keeps a grid of its first input's shape, as detectors keep their anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)
        self.grid: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(torch.relu(self.first(x)))
        if self.grid is None:
            self.grid = torch.arange(float(y.numel())).view(y.shape) / 100
        return y + self.grid


@pytest.mark.parametrize("suffix", ["pt2", pytest.param("onnx", marks=needs_onnx)])
def test_a_model_that_fixes_its_batch_gives_a_file_for_that_batch(
    tmp_path: Path, suffix: str
) -> None:
    model = Anchored().eval()
    x = torch.randn(2, 3, 6, 6)
    expected = model(x)
    path = tmp_path / f"net.{suffix}"
    with untouched(model), pytest.warns(UserWarning, match="a batch of 2 and no other"):
        done = obc.export(model, x, path)
    assert done.batch == 2 and "a batch of 2 and no other" in str(done)
    read = pt2_outputs if suffix == "pt2" else onnx_outputs
    assert torch.allclose(read(path, x), expected, atol=1e-5)


def test_any_batch_is_what_other_models_get(tmp_path: Path) -> None:
    assert obc.export(Net(), X, tmp_path / "net.pt2").batch is None
